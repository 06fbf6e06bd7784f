"""The long chaos run of job queues: rounds of kills of workers and of the server under load, each by its seed.

    python tests/chaos/run_queues.py [--seconds N] [--first S] [--seed S] [--round N]

A seed determines the faults; their timing depends on the machine. Every broken guarantee is printed with its directory,
which is kept. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300, help="seconds of faults in all")
    parser.add_argument("--round", type=float, default=60, help="seconds of faults in a round")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one round with this seed")
    options = parser.parse_args()
    # Each child imports this file again.
    from queue_chaos import QueueRound
    from queue_history import QueueFigures, listed
    from rich.console import Console

    console = Console()

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    # Segments are sealed, and leases are stored in snapshots, after a little of the log.
    os.environ["SEAWALL_STORAGE_CHECKPOINT_SIZE"] = str(1 << 20)
    began, left = time.monotonic(), options.seconds
    seed = options.first if options.seed is None else options.seed
    figures, faults, rounds, failed = QueueFigures(), Counter[str](), 0, 0
    while left > 0:
        seconds = min(options.round, left)
        left = 0 if options.seed is not None else left - seconds
        folder = Path(tempfile.mkdtemp(prefix="seawall-queue-chaos-"))
        # The shared memory of killed servers is deleted with everything else.
        os.environ["SEAWALL_FABRIC_DIRECTORY"] = str(folder)
        outcome = QueueRound(seed, folder, seconds).run()
        tell(str(outcome))
        rounds += 1
        seed += 1
        figures += outcome.figures
        faults += outcome.faults
        if outcome.complaints:
            failed += 1
            again = f"python tests/chaos/run_queues.py --seed {outcome.seed} --round {seconds:.0f}"
            tell(f"  kept: {folder}; again: {again}")
        else:
            shutil.rmtree(folder)
    tell(
        f"{rounds} rounds, {time.monotonic() - began:.0f} s: {failed} broke a guarantee; {listed(faults)}\n  {figures}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The long chaos run: rounds of faults against a node, each by its seed.

    python tests/chaos/run.py [--seconds N] [--first S] [--seed S] [--round N]

A seed determines the faults; their timing depends on the machine. Every broken guarantee is printed with its directory,
which is kept. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long in all")
    parser.add_argument("--round", type=float, default=20, help="seconds of faults in a round")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one round with this seed")
    options = parser.parse_args()
    # The clients of version 1 are in the folder of the server's tests.
    sys.path.insert(0, str(HERE.parent / "server"))
    from chaos_round import Round

    console = Console()
    began, rounds, failed = time.monotonic(), 0, 0
    seed = options.first if options.seed is None else options.seed
    while not rounds or (options.seed is None and time.monotonic() - began < options.seconds):
        folder = Path(tempfile.mkdtemp(prefix="seawall-chaos-"))
        outcome = Round(seed, folder, options.round).run()
        rounds += 1
        seed += 1
        console.print(str(outcome), markup=False, highlight=False)
        if outcome.complaints:
            failed += 1
            console.print(f"  kept: {folder}; again: make chaos SEED={outcome.seed}", markup=False, highlight=False)
        else:
            shutil.rmtree(folder)
    console.print(f"{rounds} rounds, {time.monotonic() - began:.0f} s: {failed} broke a guarantee")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

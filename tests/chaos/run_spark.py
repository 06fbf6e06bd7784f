"""The long chaos run with Spark: kills of the driver, executors and the server while records are copied.

    python tests/chaos/run_spark.py [--kills N] [--seed S]

A seed determines the order of kills; their timing depends on the machine. Every broken guarantee is printed with its
directory, which is kept. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="how many in all, of each kind as many")
    parser.add_argument("--seed", type=int, default=0, help="another order of them")
    options = parser.parse_args()
    from spark_chaos import SparkChaos

    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="seawall-spark-chaos-"))
    # The shared memory of killed servers is deleted with everything else.
    os.environ["SEAWALL_FABRIC_DIRECTORY"] = str(folder)
    # Segments are sealed after a little of the log: tasks read files, too.
    os.environ["SEAWALL_STORAGE_CHECKPOINT_SIZE"] = str(1 << 20)

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    outcome = SparkChaos(options.seed, folder, options.kills, tell=tell).run()
    tell(str(outcome))
    if outcome.complaints:
        again = f"python tests/chaos/run_spark.py --kills {options.kills} --seed {outcome.seed}"
        tell(f"  kept: {folder}; again: {again}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

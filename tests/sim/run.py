"""The long run of the simulated pod: many seeds on all cores, and the search for each planted bug.

    python tests/sim/run.py [--seeds N] [--first S] [--seed S] [--planted]

A seed that breaks a guarantee is printed with its history; `--seed` repeats it exactly. Exits with 1 if there was one,
or if a planted bug was not found.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from planted import PLANTED, seeds_until_caught
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sim_seeds import failure_of

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

#: Seeds of one piece of work.
PIECE = 10

#: Seeds within which a planted bug must be found.
SEARCH_MAX = 1_000


def run_piece(first: int, end: int) -> dict[int, str]:
    """The failures of some seeds."""
    found = {seed: failure_of(seed) for seed in range(first, end)}
    return {seed: text for seed, text in found.items() if text is not None}


def sweep(first: int, count: int, progress: Progress) -> int:
    """Many seeds; how many failed."""
    task = progress.add_task("seeds", total=count)
    failed = 0
    with ProcessPoolExecutor() as pool:
        starts = range(first, first + count, PIECE)
        running = {pool.submit(run_piece, at, min(at + PIECE, first + count)): at for at in starts}
        for future in as_completed(running):
            for seed, text in future.result().items():
                failed += 1
                progress.print(f"{text}\nagain: make sim SEED={seed}", markup=False)
            progress.advance(task, min(PIECE, first + count - running[future]))
    progress.print(f"{count:,} seeds from {first} on: {failed} broke a guarantee")
    return failed


def search(progress: Progress) -> int:
    """Every planted bug; how many were not found."""
    task = progress.add_task("planted bugs", total=len(PLANTED))
    missed = 0
    with ProcessPoolExecutor() as pool:
        running = {pool.submit(seeds_until_caught, name, SEARCH_MAX): name for name in PLANTED}
        for future in as_completed(running):
            caught = future.result()
            missed += caught is None
            said = "not found" if caught is None else f"seed {caught[0]}: {caught[1]}"
            progress.print(f"{running[future]}: {said}", markup=False)
            progress.advance(task)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--planted", action="store_true", help="look for every planted bug, too")
    options = parser.parse_args()
    if options.seed is not None:
        text = failure_of(options.seed)
        Console().print(text or f"seed {options.seed}: no guarantee broken", markup=False)
        return 1 if text else 0
    with Progress(*COLUMNS) as progress:
        failed = sweep(options.first, options.seeds, progress)
        failed += search(progress) if options.planted else 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

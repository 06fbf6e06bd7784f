"""The long crash run: crash images and damaged bytes on a simulated disk, kills of a real process, stress.

    python tests/crash/run.py [--images N] [--queues N] [--kills N] [--damage] [--stress SECONDS] [--seed S]
    python tests/crash/run.py --seed S --case NUMBER

Scripts alternate between four kinds: appends, small appends, batches received from connections, transactions.

A failing case is printed with the command that repeats only this case. Exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from itertools import islice
from pathlib import Path

from crash_arriving import ArrivingWorld
from crash_cycling import CyclingWorld
from crash_damage import CHECKS, every_byte
from crash_kill import Known, kill_cycle
from crash_queues import crash, play
from crash_stress import ERRORS, run_stress
from crash_sweep import CASES_PER_SCRIPT, case_of, run_case
from crash_transactions import TransactionWorld
from crash_world import World
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Pieces of work into which the bytes of a kind of file are divided.
DAMAGE_PIECES = 40

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def world_of(number: int) -> type[World]:
    """What a case is run in."""
    worlds = (World, CyclingWorld, ArrivingWorld, TransactionWorld)
    return worlds[number // CASES_PER_SCRIPT % len(worlds)]


def run_script(seed: int, script: int) -> tuple[int, dict[int, str]]:
    """All cases of one script; the images checked, and the traceback of each case that failed."""
    images = 0
    failures: dict[int, str] = {}
    for number in range(script * CASES_PER_SCRIPT, (script + 1) * CASES_PER_SCRIPT):
        try:
            images += run_case(seed, number, world_of(number))
        except ERRORS:
            failures[number] = traceback.format_exc()
    return images, failures


def sweep(seed: int, wanted: int, progress: Progress) -> int:
    """Scripts on all cores until enough images were checked; the number of failing cases."""
    task = progress.add_task("crash images", total=wanted)
    images = failed = script = 0
    running: set[Future[tuple[int, dict[int, str]]]] = set()
    with ProcessPoolExecutor() as pool:
        while images < wanted:
            while len(running) < 4:
                running.add(pool.submit(run_script, seed, script))
                script += 1
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                found, failures = future.result()
                images += found
                failed += len(failures)
                for number, trace in failures.items():
                    progress.print(f"{trace}\n{case_of(seed, number, world_of(number))}\nagain: {again(seed, number)}")
            progress.update(task, completed=min(images, wanted))
        pool.shutdown(cancel_futures=True)
    progress.print(f"{images:,} images of {script} scripts, seed {seed}: {failed} cases failed")
    return failed


def again(seed: int, number: int) -> str:
    return f"python tests/crash/run.py --seed {seed} --case {number}"


def queue_history(seed: int) -> str:
    """A history of queues without a crash, and one with; the traceback if one fails."""
    try:
        play(seed)
        crash(seed)
    except ERRORS:
        return traceback.format_exc()
    return ""


def queues(seed: int, count: int, progress: Progress) -> int:
    """Histories of job queues on all cores; the number of seeds that failed."""
    task = progress.add_task("queues", total=count)
    failed = 0
    with ProcessPoolExecutor() as pool:
        seeds = range(seed * 1_000_003, seed * 1_000_003 + count)
        for number, trace in zip(seeds, pool.map(queue_history, seeds, chunksize=10), strict=True):
            if trace:
                failed += 1
                progress.print(f"{trace}\nhistory {number} of queues")
            progress.advance(task)
    progress.print(f"{2 * count:,} histories of queues, seed {seed}: {failed} seeds failed")
    return failed


def kill(seed: int, cycles: int, progress: Progress) -> int:
    """Kills on one real directory; returns 1 if a guarantee was broken."""
    task = progress.add_task("kills", total=cycles)
    known: Known = {}
    acks = 0
    with tempfile.TemporaryDirectory() as directory:
        for number in range(cycles):
            try:
                acks += kill_cycle(Path(directory) / "data", seed + number, known, number % 3)
            except AssertionError:
                progress.print(f"{traceback.format_exc()}\nkill {number} of seed {seed}")
                return 1
            progress.advance(task)
    progress.print(f"{cycles} kills, {acks:,} acked records, seed {seed}: all there")
    return 0


def damage_bytes(kind: str, piece: int) -> dict[int, str]:
    """Damage one piece of the bytes of a kind of file; returns the traceback of each that cost too much."""
    failures: dict[int, str] = {}
    for path, byte in islice(every_byte(kind), piece, None, DAMAGE_PIECES):
        try:
            CHECKS[kind](path, byte)
        except ERRORS:
            failures[byte] = traceback.format_exc()
    return failures


def damage(progress: Progress) -> int:
    """Every byte of a file of each kind; the number of those that cost too much."""
    task = progress.add_task("damage", total=len(CHECKS) * DAMAGE_PIECES)
    failed = 0
    with ProcessPoolExecutor() as pool:
        running = {pool.submit(damage_bytes, kind, piece): kind for kind in CHECKS for piece in range(DAMAGE_PIECES)}
        for future in as_completed(running):
            for byte, trace in future.result().items():
                failed += 1
                progress.print(f"{trace}\nbyte {byte} of a {running[future]} file")
            progress.advance(task)
    count = sum(1 for kind in CHECKS for _ in every_byte(kind))
    progress.print(f"{count:,} bytes of {len(CHECKS)} kinds of files damaged: {failed} cost too much")
    return failed


def stress(seconds: float, seed: int) -> int:
    """Everything at once; 1 if something went wrong."""
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        try:
            counts = run_stress(Path(directory) / "data", seconds, seed)
        except ERRORS:
            console.print(f"{traceback.format_exc()}\nstress of seed {seed}", markup=False)
            return 1
    done = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    console.print(f"{seconds:g} s of everything at once, seed {seed}: no wrong answer ({done})")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000, help="crash images to check, at least")
    parser.add_argument("--queues", type=int, default=0, help="seeds of random histories of job queues")
    parser.add_argument("--kills", type=int, default=100, help="times a real process is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--damage", action="store_true", help="damage every byte of a file of each kind")
    parser.add_argument("--stress", type=float, default=0, help="seconds of everything at once on a real directory")
    parser.add_argument("--case", type=int, help="run this case alone")
    options = parser.parse_args()
    if options.case is not None:
        console = Console()
        world = world_of(options.case)
        console.print(case_of(options.seed, options.case, world))
        console.print(f"{run_case(options.seed, options.case, world)} images, no promise broken")
        return 0
    with Progress(*COLUMNS) as progress:
        failed = sweep(options.seed, options.images, progress) if options.images else 0
        failed += queues(options.seed, options.queues, progress) if options.queues else 0
        failed += kill(options.seed, options.kills, progress) if options.kills else 0
        failed += damage(progress) if options.damage else 0
    failed += stress(options.stress, options.seed) if options.stress else 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The long fuzz run: every target of this folder on many mutated inputs; only typed errors are allowed.

    python tests/fuzz/run.py [--executions N] [--seed S] [--only NAME]

A failure prints the target, the seed and the input as hexadecimal, and exits with 1. A seed always gives the same
inputs.
"""

import argparse
import importlib
import random
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "kernels"))  # for the twins
MODULES = sorted(path.stem for path in HERE.glob("test_*_parsers.py"))


def targets() -> dict[str, tuple[str, str]]:
    """Every target by `module:name`."""
    found = {}
    for module in MODULES:
        for name in importlib.import_module(module).TARGETS:
            found[f"{module.removeprefix('test_')}:{name}"] = (module, name)
    return found


def run_target(module: str, name: str, executions: int, seed: str) -> tuple[bytes, str] | None:
    """Feed one target; return the input and the traceback of the first failure."""
    loaded = importlib.import_module(module)
    mutate = importlib.import_module("fuzz_mutation").mutate
    target, corpus = loaded.TARGETS[name], loaded.CORPUS[name]
    random_source = random.Random(f"{seed} {module} {name}")
    for number in range(executions):
        if number % 50 == 0:
            data = random_source.randbytes(random_source.randrange(200))
        else:
            data = mutate(random_source, random_source.choice(corpus))
        try:
            target(data)
        except Exception:
            return data, traceback.format_exc()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--executions", type=int, default=100_000, help="inputs for each target")
    parser.add_argument("--seed", default="seawall")
    parser.add_argument("--only", default="", help="run the targets whose name contains this")
    options = parser.parse_args()
    chosen = {label: target for label, target in targets().items() if options.only in label}
    if not chosen:
        print(f"no target's name contains {options.only!r}", file=sys.stderr)
        return 2
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress, ProcessPoolExecutor() as pool:
        task = progress.add_task("fuzzing", total=len(chosen))
        running = {
            pool.submit(run_target, module, name, options.executions, options.seed): label
            for label, (module, name) in chosen.items()
        }
        for done in as_completed(running):
            progress.advance(task)
            failure = done.result()
            if failure is not None:
                failed += 1
                data, trace = failure
                progress.print(f"{running[done]} failed, seed {options.seed}, input {data.hex()}\n{trace}")
    print(f"{len(chosen)} targets, {options.executions:,} executions each, seed {options.seed}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

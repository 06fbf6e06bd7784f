"""The demo: a web shop writes to a server, Spark and workers read and write back, and all of these are killed.

    python examples/demo [--events N] [--seconds S] [--writers N] [--directory DIR]

    writers ──▶ orders, payments (order 5), clicks (order 2) ──▶ Spark ──▶ ledger, revenue (topics), Parquet
       └─────▶ mails (queue) ──▶ workers ──▶ invoices, mails.dead

During the run, the demo kills the server, Spark and two workers with SIGKILL. In the end it checks every record. Exit
code 0 means that every check passed; with exit code 1, the demo prints what failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from demo_children import DemoError
from demo_directory import RunDirectory, run_directory
from demo_report import examine
from demo_run import Run
from rich.console import Console
from rich.table import Table

DEFAULT_DIRECTORY = Path(__file__).parents[2] / "build" / "demo"


def main() -> int:
    """Run the demo and print its result."""
    parser = argparse.ArgumentParser(description="Write, read, kill, and check every record.")
    parser.add_argument("--events", type=int, default=200_000, help="events to publish (200000)")
    parser.add_argument("--seconds", type=float, default=45.0, help="time over which to publish them (45)")
    parser.add_argument("--writers", type=int, default=4, help="writers, a process each (4)")
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="where to store the run (build/demo)")
    parser.add_argument("--limit", type=float, default=230.0, help="seconds after which it gives up (230)")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with run_directory(arguments.directory) as paths:
            run = Run(paths, console, arguments.events, arguments.seconds, arguments.writers, arguments.limit)
            try:
                complaints, proven = run.do(examine)
            except DemoError as error:
                complaints, proven = [str(error)], []
            return report(console, paths, complaints, proven)
    except DemoError as error:
        console.print(f"[red]The demo did not start:[/red] {error}")
    except KeyboardInterrupt:
        console.print("\nThe demo was interrupted, and has stopped all that it had started.")
        return 130
    return 1


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C."""
    raise KeyboardInterrupt


def report(console: Console, paths: RunDirectory, complaints: list[str], proven: list[str]) -> int:
    """Print the summary and return the exit code."""
    sign, lines = ("[green]✓[/green]", proven) if not complaints else ("[red]✗[/red]", complaints)
    title = "What was proven, record by record" if not complaints else "These checks failed"
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(f"  {sign}", line)
    console.print(f"\n[bold]{title}[/bold]")
    console.print(table)
    console.print(f"\nThe files of this run are in {relative(paths.directory)}")
    console.print(f"  output of all processes: {relative(paths.output)}", soft_wrap=True)
    if not complaints:
        console.print(f"  seawall read revenue --data {relative(paths.data)} --limit 8", soft_wrap=True)
    return 1 if complaints else 0


def relative(path: Path) -> str:
    """A path relative to the working directory, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())

"""The demo: a web shop writes to a server, Spark reads and writes back, both are killed, and every record is checked.

    python examples/demo [--events N] [--seconds S] [--writers N] [--directory DIR]

    writers ──▶ orders, payments (order 5), clicks (order 2) ──▶ Spark ──▶ ledger, revenue (topics), Parquet

In the middle the server is killed with SIGKILL, and later on Spark is. Exit code 0 says that everything was checked and
is as promised, 1 that something is not, and what.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from demo_children import DemoError
from demo_place import Place, place_in
from demo_run import Run
from demo_verdict import examine
from rich.console import Console
from rich.table import Table

DEFAULT_DIRECTORY = Path(__file__).parents[2] / "build" / "demo"


def main() -> int:
    """Run it, and say what it has shown."""
    parser = argparse.ArgumentParser(description="Write, read, kill, and check every record.")
    parser.add_argument("--events", type=int, default=200_000, help="events to publish (200000)")
    parser.add_argument("--seconds", type=float, default=45.0, help="how long writers take for them (45)")
    parser.add_argument("--writers", type=int, default=4, help="writers, a process each (4)")
    parser.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY, help="where to keep things (build/demo)")
    parser.add_argument("--limit", type=float, default=230.0, help="seconds after which it gives up (230)")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with place_in(arguments.directory) as place:
            run = Run(place, console, arguments.events, arguments.seconds, arguments.writers, arguments.limit)
            try:
                complaints, proven = run.do(examine)
            except DemoError as error:
                complaints, proven = [str(error)], []
            return report(console, place, complaints, proven)
    except DemoError as error:
        console.print(f"[red]The demo did not begin:[/red] {error}")
    except KeyboardInterrupt:
        console.print("\nThe demo was interrupted; its server, its writers and Spark have ended with it.")
        return 130
    return 1


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """End as by Ctrl-C."""
    raise KeyboardInterrupt


def report(console: Console, place: Place, complaints: list[str], proven: list[str]) -> int:
    """The closing summary; the exit code."""
    sign, lines = ("[green]✓[/green]", proven) if not complaints else ("[red]✗[/red]", complaints)
    title = "What was proven, record by record" if not complaints else "This is not as promised"
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row(f"  {sign}", line)
    console.print(f"\n[bold]{title}[/bold]")
    console.print(table)
    console.print(f"\nAll of it is in {relative(place.directory)}")
    console.print(f"  what server and Spark had to say: {relative(place.output)}", soft_wrap=True)
    if not complaints:
        console.print(f"  seawall read revenue --data {relative(place.data)} --limit 8", soft_wrap=True)
    return 1 if complaints else 0


def relative(path: Path) -> str:
    """A path as people would write it here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())

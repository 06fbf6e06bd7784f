"""The demo: write a topic from several threads, read it back as a table, kill a writer, and see what survived.

    python examples/demo.py [DIRECTORY]

Everything happens in an embedded log; without a directory, in a temporary one. An assertion fails if anything is not as
promised.
"""

import hashlib
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

import seawall
from seawall.engine.embedded import EmbeddedLog
from seawall.topics.gaps import Gap

WRITERS = 4
COMMITS = 50
RECORDS = 500
ACKS_BEFORE_KILL = 200

CHILD = """
import hashlib, sys
import seawall

with seawall.open(sys.argv[1]) as log:
    number = 0
    while True:
        value = f"payment {number}"
        seq = log.publish("payments", value).first_seq
        print(seq, hashlib.sha256(value.encode()).hexdigest(), flush=True)
        number += 1
"""


def write_and_read(log: EmbeddedLog, progress: Progress) -> str:
    """Threads publish events; every one of them must come back exactly once."""
    log.create_topic("events")
    task = progress.add_task("publishing from four threads, durable at every commit", total=WRITERS * COMMITS)

    def work(writer: int) -> None:
        for commit in range(COMMITS):
            log.publish("events", [{"writer": writer, "commit": commit, "n": n} for n in range(RECORDS)])
            progress.advance(task)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = log.read_arrow("events", columns=("value",))
    written = WRITERS * COMMITS * RECORDS
    distinct = len(set(table.column("value").to_pylist()))
    assert table.num_rows == distinct == written, (table.num_rows, distinct, written)
    assert table.column("seq").to_pylist() == list(range(1, written + 1))
    return (
        f"{written:,} events from {WRITERS} threads: each read back exactly once, seqs 1 to {written:,} without a hole"
    )


def kill_and_recover(path: Path, progress: Progress) -> str:
    """A process publishes and tells what was acked; it is killed in the middle of its work."""
    with seawall.open(path) as log:
        log.create_topic("payments")
    task = progress.add_task("another process publishes, and is killed", total=ACKS_BEFORE_KILL)
    acked: dict[int, str] = {}
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            seq, digest = line.split()
            acked[int(seq)] = digest
            progress.advance(task)
            if len(acked) == ACKS_BEFORE_KILL:
                child.send_signal(signal.SIGKILL)
    with seawall.open(path) as log:
        items = list(log.follow("payments"))
        found = {record.seq: record.value for item in items if not isinstance(item, Gap) for record in item}
        gaps = [item for item in items if isinstance(item, Gap)]
    for seq, digest in acked.items():
        assert hashlib.sha256(found[seq]).hexdigest() == digest, f"acked payment {seq} is not what was sent"
    lost = ", ".join(f"{gap.first_seq:,} to {gap.last_seq:,}" for gap in gaps)
    return f"{len(acked)} acked payments, all there after SIGKILL; numbers never given: {lost or 'none'}"


def main() -> int:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="seawall-demo-") as temporary, Progress(console=console) as progress:
        path = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "data"
        with seawall.open(path) as log:
            shown = [write_and_read(log, progress)]
        shown.append(kill_and_recover(path, progress))
    console.print("\n[bold]What this has shown[/bold]")
    for line in shown:
        console.print(f"  • {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

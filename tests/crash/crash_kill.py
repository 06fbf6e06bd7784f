"""A process that publishes until it is killed, and the check of what it leaves behind on a real disk.

    python tests/crash/crash_kill.py DIRECTORY SEED        the child: a line "seq digest" on its output for each ack

Nothing acked may be lost or changed, seqs are dense or an explicit gap, and no seq is ever given twice: the facts of
all lives of the directory are kept together.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import seawall
from seawall.engine.records import ReceivedBatch

TOPIC = "events"


def publish_for_ever(directory: str, seed: int) -> None:
    """The child."""
    chance = random.Random(seed)
    log = seawall.open(directory)
    if TOPIC not in log.topics():
        log.create_topic(TOPIC, segment_max_records=50)
    while True:
        values = [chance.randbytes(chance.choice((8, 100, 3_000))) for _ in range(chance.choice((1, 1, 5)))]
        if chance.random() < 0.1:
            values = [chance.randbytes(70_000)]
        published = log.publish(TOPIC, values)
        lines = [f"{seq} {digest(value)}\n" for seq, value in zip(published.seqs, values, strict=True)]
        os.write(1, "".join(lines).encode())
        if chance.random() < 0.05:
            log.checkpoint()


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:16]


def kill_cycle(directory: Path, seed: int, known: dict[int, str]) -> int:
    """Let a child publish, kill it at some ack, open what it left, compare; the acks it gave."""
    chance = random.Random(f"kill {seed}")
    command = [sys.executable, __file__, str(directory), str(seed)]
    acked: dict[int, str] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(chance.randint(1, 300)):
            note(acked, child.stdout.readline())
        # Anywhere in what it does next: the more there is in the pipe, the later it is.
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            note(acked, line)
    for seq, value in acked.items():
        assert known.setdefault(seq, value) == value, f"seq {seq} was given twice"
    with seawall.open(directory) as log:
        found: dict[int, str] = {}
        due = 1
        for item in log.follow(TOPIC):
            if isinstance(item, ReceivedBatch):
                assert item.base_seq == due
                found.update((record.seq, digest(record.value)) for record in item)
                due = item.next_seq
            else:
                assert item.first_seq == due
                due = item.last_seq + 1
        assert due == log.describe(TOPIC).next_seq
    for seq, value in known.items():
        assert found.get(seq) == value, f"seq {seq} was acked or shown before, and is lost or another"
    known.update(found)
    return len(acked)


def note(acked: dict[int, str], line: bytes) -> None:
    """One ack; the last line may be cut by the kill, and then it was not told."""
    if line.endswith(b"\n"):
        seq, value = line.decode().split()
        acked[int(seq)] = value


if __name__ == "__main__":
    publish_for_ever(sys.argv[1], int(sys.argv[2]))

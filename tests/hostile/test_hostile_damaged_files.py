"""Files that somebody truncates or removes while a server uses them: the server goes on, and so do its readers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import pytest
from hostile_node import HostileNode, StartNode

import seawall
from seawall.api.publishable import Message
from seawall.api.received import ReceivedBatch, seq_after
from seawall.client.remote_log import RemoteLog
from seawall.errors import SeawallError
from seawall.wire.format.codes import GapReason
from seawall.wire.format.gaps import Gap

Attack: TypeAlias = Callable[[Path], None]

#: How long a client looks for a server that is lost.
PATIENCE_S = 10
#: How long a checkpoint may be in coming while the other topic is published to.
CHECKPOINT_TIMEOUT_S = 60

#: Records of one batch, batches, and records of one segment of the damaged topic.
RECORDS, BATCHES, SEGMENT_RECORDS = 20, 10, 40
#: A segment of two batches is large enough to go from the file to the socket.
VALUE = b"v" * 4_000
PORTION_SIZE = 200_000
#: Records that wait in the log when the attack comes.
WAITING = 30
#: Seq of a record that was deleted, and the last one.
DELETED_SEQ = RECORDS * BATCHES + 1
LAST_SEQ = DELETED_SEQ + RECORDS * 2 + WAITING


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def remove(path: Path) -> None:
    path.unlink()


ATTACKS = {"truncate": truncate, "halve": halve, "remove": remove}

#: What is attacked: a pattern of files in a data directory, and whether records of the damaged topic may be lost by it.
FILES = {
    "wal": ("wal/*.wal", True),
    "active": ("topics/00000001/*.active", True),
    "sealed": ("topics/00000001/*.sealed", True),
    "index": ("topics/00000001/*.index", False),
    "deletes": ("topics/00000001/*.deletes", False),
    "snapshot": ("meta/*.meta", False),
    "format": ("FORMAT", False),
    "lock": ("LOCK", False),
    "ballast": ("BALLAST", False),
}

#: What cannot be opened again as if nothing had happened: the server ran on, and its next start says what is missing.
NEEDS_A_PERSON = {"wal", "format"}


def value_of(number: int) -> bytes:
    return b"%d:" % number + VALUE


def publish_large(log: RemoteLog, first: int, count: int) -> None:
    for start in range(first, first + RECORDS * count, RECORDS):
        log.publish("damaged", [value_of(number) for number in range(start, start + RECORDS)])


def prepare(node: HostileNode) -> None:
    """Sealed segments with indexes and deletes, a snapshot, an active segment, and batches that wait in the log."""
    with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
        log.create_topic("damaged", segment_max_records=SEGMENT_RECORDS)
        log.create_topic("healthy")
        publish_large(log, 1, BATCHES)
        log.publish("damaged", [Message(b"tagged", tag="gone")])
        assert log.delete("damaged", tag="gone") == 1
    assert node.stop() == 0
    node.start()
    with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
        publish_large(log, DELETED_SEQ + 1, 2)
        for number in range(LAST_SEQ - WAITING + 1, LAST_SEQ + 1):
            log.publish("damaged", [b"%d" % number])


def read_all(log: RemoteLog, last_seq: int) -> tuple[dict[int, bytes], set[int]]:
    """Every record of the damaged topic, and the seqs that are told to be lost."""
    found: dict[int, bytes] = {}
    lost: set[int] = set()
    seq = 1
    while seq <= last_seq:
        # Little at a time, so that most answers are stretches of a file.
        items = log.read("damaged", seq, max_bytes=PORTION_SIZE)
        assert items, f"a reader at seq {seq} gets nothing"
        for item in items:
            if isinstance(item, ReceivedBatch):
                found.update((record.seq, record.value) for record in item)
            else:
                assert isinstance(item, Gap)
                lost.update(range(item.first_seq, item.last_seq + 1))
        seq = seq_after(items[-1])
    return found, lost


def check_all_told(node: HostileNode, *, may_lose: bool, last_seq: int = LAST_SEQ) -> None:
    """Each record is delivered as it was published, or told to be lost."""
    with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
        found, lost = read_all(log, last_seq)
    assert sorted([*found, *lost]) == [seq for seq in range(1, last_seq + 1) if seq != DELETED_SEQ]
    for seq, value in found.items():
        assert value == (b"%d" % seq if LAST_SEQ - WAITING < seq <= LAST_SEQ else value_of(seq))
    assert may_lose or not lost


@contextmanager
def traffic(node: HostileNode, *, may_lose: bool) -> Iterator[None]:
    """A publisher and a reader of another topic, who notice nothing; or a gap, where what they share `may_lose` it."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        count = 0
        try:
            with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
                while not is_over.is_set() or count < 100:
                    count += 1
                    log.publish("healthy", [b"%d" % count])
                    batch = log.read("healthy", count, limit=1)[0]
                    if may_lose and isinstance(batch, Gap):
                        assert batch.reason is GapReason.CORRUPTION
                        continue
                    assert isinstance(batch, ReceivedBatch)
                    assert [record.value for record in batch] == [b"%d" % count]
        except (SeawallError, OSError, AssertionError, ValueError) as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert not failures, failures


def attack_all(data: Path, pattern: str, attack: Attack) -> None:
    """Attack all files that match, at least one: a checkpoint may still have to write it, or renames it meanwhile."""
    attacked_files = 0
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
    while not attacked_files:
        assert time.monotonic() < deadline, f"no {pattern} is there: {sorted(data.rglob('*'))}"
        for path in sorted(data.glob(pattern)):
            with suppress(FileNotFoundError):
                attack(path)
                attacked_files += 1
        time.sleep(0.01)


def attacked(start_node: StartNode, monkeypatch: pytest.MonkeyPatch, kind: str, attack: Attack) -> None:
    monkeypatch.setenv("SEAWALL_STORAGE_CHECKPOINT_SIZE", "65536")
    node = start_node()
    prepare(node)
    pattern, may_lose = FILES[kind]
    # Records of all topics wait in the log to be flushed.
    with traffic(node, may_lose=kind == "wal"):
        check_all_told(node, may_lose=False)
        attack_all(node.data, pattern, attack)
        # The second reader is told what the first one was.
        for _ in range(2):
            check_all_told(node, may_lose=may_lose)
        # Segments are begun and sealed, places filled, checkpoints made.
        with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
            publish_large(log, LAST_SEQ + 1, 2 * SEGMENT_RECORDS // RECORDS)
        check_all_told(node, may_lose=may_lose, last_seq=LAST_SEQ + 2 * SEGMENT_RECORDS)
    assert node.is_running
    assert "Traceback" not in node.stderr
    if kind not in NEEDS_A_PERSON:
        assert node.stop() == 0
        node.start()
        check_all_told(node, may_lose=may_lose, last_seq=LAST_SEQ + 2 * SEGMENT_RECORDS)


#: One attack of each effect on the server of old: it died, it ended connections, it refused everything.
QUICK = {("index", "truncate"), ("sealed", "halve"), ("active", "remove")}


@pytest.mark.parametrize(
    ("kind", "attack"),
    [
        pytest.param(kind, attack, marks=[] if (kind, attack) in QUICK else pytest.mark.slow)
        for kind in FILES
        for attack in ATTACKS
    ],
)
def test_a_damaged_file_ends_no_server_and_no_reader(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, kind: str, attack: str
) -> None:
    """INV-MAPPED-NOT-SERVED."""
    attacked(start_node, monkeypatch, kind, ATTACKS[attack])

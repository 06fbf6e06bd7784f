"""Files that are truncated or removed while a server uses them: the server and its readers continue."""

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
from seawall.engine.api.embedded import EmbeddedLog
from seawall.errors import SeawallError
from seawall.wire.format.codes import GapReason
from seawall.wire.format.gaps import Gap

Attack: TypeAlias = Callable[[Path], None]

#: How long a client tries to reach a lost server.
PATIENCE_S = 10
#: How long to wait for a checkpoint while the other topic is published to.
CHECKPOINT_TIMEOUT_S = 60

#: Records of one batch, batches, and records of one segment of the damaged topic.
RECORDS, BATCHES, SEGMENT_RECORDS = 20, 10, 40
#: A segment of two batches is large enough to go from the file to the socket.
VALUE = b"v" * 4_000
FETCH_SIZE = 200_000
#: Records that are unflushed at the attack.
UNFLUSHED = 30
#: Seq of a record that was deleted, and the last one.
DELETED_SEQ = RECORDS * BATCHES + 1
LAST_SEQ = DELETED_SEQ + RECORDS * 2 + UNFLUSHED


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

#: Attacks after which the directory cannot be opened: the server continued, and its next start names what is missing.
NOT_OPENED_AGAIN = {"wal", "format"}


def value_of(number: int) -> bytes:
    return b"%d:" % number + VALUE


def publish_large(log: RemoteLog | EmbeddedLog, first: int, count: int) -> None:
    for start in range(first, first + RECORDS * count, RECORDS):
        log.publish("damaged", [value_of(number) for number in range(start, start + RECORDS)])


def prepare(data: Path) -> None:
    """Sealed segments with indexes and deletes, and a snapshot."""
    with seawall.open(data) as log:
        log.create_topic("damaged", segment_max_records=SEGMENT_RECORDS)
        log.create_topic("healthy")
        publish_large(log, 1, BATCHES)
        log.publish("damaged", [Message(b"tagged", tag="gone")])
        assert log.delete("damaged", tag="gone") == 1


def publish_more(node: HostileNode) -> None:
    """An active segment, and unflushed batches."""
    with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
        publish_large(log, DELETED_SEQ + 1, 2)
        for number in range(LAST_SEQ - UNFLUSHED + 1, LAST_SEQ + 1):
            log.publish("damaged", [b"%d" % number])


def read_all(log: RemoteLog | EmbeddedLog, last_seq: int) -> tuple[dict[int, bytes], set[int]]:
    """Every record of the damaged topic, and the seqs that are reported as lost."""
    found: dict[int, bytes] = {}
    lost: set[int] = set()
    seq = 1
    while seq <= last_seq:
        # Little at a time, so that most answers are ranges of a file.
        items = log.read("damaged", seq, max_bytes=FETCH_SIZE)
        assert items, f"a reader at seq {seq} gets nothing"
        for item in items:
            if isinstance(item, ReceivedBatch):
                found.update((record.seq, record.value) for record in item)
            else:
                assert isinstance(item, Gap)
                lost.update(range(item.first_seq, item.last_seq + 1))
        seq = seq_after(items[-1])
    return found, lost


def check_served(node: HostileNode, *, may_lose: bool, last_seq: int = LAST_SEQ) -> None:
    with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
        check_reported(log, may_lose=may_lose, last_seq=last_seq)


def check_reported(log: RemoteLog | EmbeddedLog, *, may_lose: bool, last_seq: int) -> None:
    """Each record is delivered as it was published, or reported as lost."""
    found, lost = read_all(log, last_seq)
    assert sorted([*found, *lost]) == [seq for seq in range(1, last_seq + 1) if seq != DELETED_SEQ]
    for seq, value in found.items():
        assert value == (b"%d" % seq if LAST_SEQ - UNFLUSHED < seq <= LAST_SEQ else value_of(seq))
    assert may_lose or not lost


@contextmanager
def traffic(node: HostileNode, *, may_lose: bool) -> Iterator[None]:
    """A publisher and reader of another topic, which is not affected; or gets a gap if a shared file `may_lose` it."""
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
    """Attack all files that match, at least one: a checkpoint may still have to write it, or rename it meanwhile."""
    attacked_files = 0
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
    while not attacked_files:
        assert time.monotonic() < deadline, f"no {pattern} is there: {sorted(data.rglob('*'))}"
        for path in sorted(data.glob(pattern)):
            with suppress(FileNotFoundError):
                attack(path)
                attacked_files += 1
        time.sleep(0.01)


def check_attack(start_node: StartNode, data: Path, kind: str, attack: Attack) -> None:
    prepare(data)
    node = start_node()
    assert node.data == data
    publish_more(node)
    pattern, may_lose = FILES[kind]
    # Records of all topics are unflushed.
    with traffic(node, may_lose=kind == "wal"):
        check_served(node, may_lose=False)
        attack_all(node.data, pattern, attack)
        # The second reader gets the same as the first.
        for _ in range(2):
            check_served(node, may_lose=may_lose)
        # Segments are rolled and sealed, batches flushed, checkpoints made.
        with seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
            publish_large(log, LAST_SEQ + 1, 2 * SEGMENT_RECORDS // RECORDS)
        check_served(node, may_lose=may_lose, last_seq=LAST_SEQ + 2 * SEGMENT_RECORDS)
    assert node.is_running
    assert "Traceback" not in node.stderr
    if kind not in NOT_OPENED_AGAIN:
        assert node.stop() == 0
        with seawall.open(node.data) as log:
            check_reported(log, may_lose=may_lose, last_seq=LAST_SEQ + 2 * SEGMENT_RECORDS)


#: One attack of each effect on an early version: it died, it closed connections, it refused everything.
QUICK = {("index", "truncate"), ("sealed", "halve"), ("active", "remove")}


@pytest.mark.parametrize(
    ("kind", "attack"),
    [
        pytest.param(kind, attack, marks=[] if (kind, attack) in QUICK else pytest.mark.slow)
        for kind in FILES
        for attack in ATTACKS
    ],
)
def test_a_damaged_file_stops_neither_server_nor_readers(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, attack: str
) -> None:
    """INV-MAPPED-NOT-SERVED."""
    monkeypatch.setenv("SEAWALL_STORAGE_CHECKPOINT_SIZE", "65536")
    check_attack(start_node, tmp_path / "data", kind, ATTACKS[attack])

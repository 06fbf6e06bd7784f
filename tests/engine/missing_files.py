"""A data directory with every kind of file, and the content that readers get from it.

build(log)           fills a log: trimmed by checkpoints, with sealed, active, adopted and staged segments, and deletes
KINDS                every kind of file and directory, and the outcome if it is missing
damage(paths, how)   removes files or directories, or truncates files to nothing or to their half
answer(log)          everything that readers get
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from seawall import limits
from seawall.api.received import ReceivedBatch
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.view import ReadOnlyLog
from seawall.engine.store.settings import StoreSettings
from seawall.topics.gaps import Gap

SETTINGS = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, checkpoint_size=1 << 40, ceiling_step=64
)

#: A direct batch: it is written straight to its segment.
LARGE = 70_000

HOWS = ("removed", "emptied", "halved")

#: For each topic: records by seq, and gaps with their reasons.
Answer: TypeAlias = dict[str, tuple[dict[int, bytes], list[tuple[int, int, str]]]]


def record(number: int, size: int = 3_000) -> bytes:
    return (b"record %d " % number).ljust(size, b".")


def publish(log: EmbeddedLog, topic: str, first: int, last: int, size: int = 3_000) -> None:
    for number in range(first, last + 1, 4):
        log.publish(topic, [record(each, size) for each in range(number, min(number + 4, last + 1))])


def build(log: EmbeddedLog) -> None:
    """Topic 1 "events", 2 "moved" with an adopted segment, 3 for staging, 4 "late", which is unflushed.

    Of "events" seqs 1–10 and 11–14 are deleted, the latter in the log alone; 9–64 are sealed, 65–71 are in the active
    segment, 72 and 73 unflushed. Checkpoints have trimmed the first files of the log.
    """
    log.create_topic("events", segment_max_records=8)
    log.create_topic("moved")
    publish(log, "events", 1, 28)
    log.checkpoint()
    with log.transaction() as transaction:
        transaction.publish("moved", [b"a" * LARGE, b"b" * LARGE])
    log.delete("events", before_seq=11)
    log.commit("reader", "events", 7)
    publish(log, "events", 29, 68)
    log.checkpoint()
    publish(log, "events", 69, 69)
    publish(log, "events", 70, 70)
    log.checkpoint()
    log.create_topic("late")
    for number in range(1, 5):
        publish(log, "late", number, number, 20_000)
    log.delete("events", before_seq=15)
    publish(log, "events", 71, 71, LARGE)
    publish(log, "events", 72, 73)


def answer(log: EmbeddedLog | ReadOnlyLog) -> Answer:
    found: Answer = {}
    for name in log.topics():
        records, gaps = found.setdefault(name, ({}, []))
        for item in log.follow(name):
            if isinstance(item, ReceivedBatch):
                records |= {each.seq: bytes(each.value) for each in item}
            elif isinstance(item, Gap):
                gaps.append((item.first_seq, item.last_seq, item.reason.name))
    return found


class Outcome(Enum):
    """What happens if a file is missing."""

    REFUSED = "nothing is opened, and nothing is changed"
    DERIVED = "nothing is lost: other files hold the same"
    GAP = "its records are a gap with reason corruption, all others are read"


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    name: str
    choose: Callable[[Path], Iterable[Path]]
    outcome: Outcome
    #: The records that may be lost: topic and seqs.
    lost: tuple[str, range] | None = None
    #: A pattern in the message of a refusal, besides the remedy.
    message: str = ""
    #: True if a view refuses a log with this file missing, while an opening creates the file.
    view_refuses: bool = False

    @property
    def is_directory(self) -> bool:
        return self.name.startswith("directory")


def _matching(pattern: str, *numbers: int) -> Callable[[Path], list[Path]]:
    """Choose the matching paths with these indexes; all of them if none is given."""

    def choose(data: Path) -> list[Path]:
        found = sorted(data.glob(pattern))
        return [found[number] for number in numbers] if numbers else found

    return choose


_WAL = "wal/*.wal"
_META = "meta/*.meta"
_REFUSED, _DERIVED, _GAP = Outcome.REFUSED, Outcome.DERIVED, Outcome.GAP
_EVENTS = "topics/00000001"

KINDS = (
    Kind("FORMAT", _matching("FORMAT"), _REFUSED, message="FORMAT"),
    Kind("LOCK", _matching("LOCK"), _DERIVED),
    Kind("BALLAST", _matching("BALLAST"), _DERIVED),
    Kind("newest snapshot", _matching(_META, -1), _DERIVED),
    Kind("older snapshot", _matching(_META, 0), _DERIVED),
    Kind("all snapshots", _matching(_META), _REFUSED, message="no sound snapshot .*is left"),
    Kind("first log file", _matching(_WAL, 0), _REFUSED, message="wal"),
    Kind("middle log file", _matching(_WAL, 1), _REFUSED, message=r"wal-\d{20}\.wal"),
    Kind("newest log file", _matching(_WAL, -1), _REFUSED, message=r"wal-\d{20}\.wal"),
    Kind("two newest log files", _matching(_WAL, -2, -1), _REFUSED, message=r"wal-\d{20}\.wal"),
    Kind("all log files", _matching(_WAL), _REFUSED, message="wal"),
    Kind("sealed segment", _matching(f"{_EVENTS}/*.sealed", 1), _GAP, ("events", range(17, 25))),
    Kind("oldest sealed segment", _matching(f"{_EVENTS}/*.sealed", 0), _GAP, ("events", range(15, 17))),
    Kind("index", _matching(f"{_EVENTS}/*.index", 0), _DERIVED),
    Kind("deletes", _matching(f"{_EVENTS}/*.deletes", 0), _DERIVED),
    Kind("active segment", _matching(f"{_EVENTS}/*.active"), _GAP, ("events", range(65, 72)), view_refuses=True),
    Kind("adopted segment", _matching("topics/00000002/*.active"), _GAP, ("moved", range(1, 3)), view_refuses=True),
    Kind("staged segment", _matching("topics/00000003/*"), _DERIVED),
    Kind("active segment of an unflushed topic", _matching("topics/00000004/*.active"), _DERIVED),
    Kind("directory of a topic", _matching(_EVENTS), _GAP, ("events", range(15, 72)), view_refuses=True),
    Kind("directory of an unflushed topic", _matching("topics/00000004"), _DERIVED),
    Kind("directory wal", _matching("wal"), _REFUSED, message="wal is missing"),
    Kind("directory meta", _matching("meta"), _REFUSED, message="meta is missing"),
    Kind("directory topics", _matching("topics"), _REFUSED, message="topics is missing"),
)

CASES = [(kind, how) for kind in KINDS for how in (HOWS[:1] if kind.is_directory else HOWS)]


def damage(paths: Iterable[Path], how: str) -> None:
    for path in paths:
        if how != "removed":
            os.truncate(path, path.stat().st_size // 2 if how == "halved" else 0)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def tree(data: Path) -> dict[str, bytes]:
    """The bytes of every file except LOCK."""
    files = (each for each in data.rglob("*") if each.is_file() and each.name != "LOCK")
    return {str(each.relative_to(data)): each.read_bytes() for each in files}

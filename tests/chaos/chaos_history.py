"""The history of clients of a log under faults, and its checker: pure, so that tests can plant faults.

    offered     records that a publisher published, in order, with the connection where that matters
    acked       records acknowledged as stored, with their seqs
    read        records that a reader received, in order
    final       records in the log at the end

A value is `name connection number`, a space, and padding. `judge` returns complaints; none if every guarantee holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

#: A value, cut down to what identifies it.
Mark = bytes


def mark_of(value: bytes) -> Mark:
    """A value without its padding."""
    return b" ".join(bytes(value).split(b" ", 3)[:3])


def value_of(name: str, connection: int, number: int, padding: int = 0) -> bytes:
    return b"%s %d %d %s" % (name.encode(), connection, number, b"x" * padding)


@dataclass
class Written:
    """What one publisher did. With `is_once` it retries without duplicates; otherwise each attempt has its own mark."""

    name: str
    topic: str
    is_once: bool = True
    is_ordered: bool = True
    offered: list[Mark] = field(default_factory=list)
    #: Acked marks and their seqs (0 if the protocol reports none).
    acked: dict[Mark, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    #: True if refusals are allowed: the disk was full.
    may_fail: bool = False


@dataclass
class ReadItem:
    """A record, or a gap from `seq` to `last`."""

    seq: int
    mark: Mark | None
    last: int = 0


@dataclass
class Read:
    """What one reader received of a topic, from its first seq on."""

    name: str
    topic: str
    items: list[ReadItem] = field(default_factory=list)
    #: True if it must have received everything.
    is_whole: bool = True
    #: Version 1 counts bytes: its readers get neither seqs nor gaps.
    has_seqs: bool = True
    failures: list[str] = field(default_factory=list)


@dataclass
class History:
    """One round."""

    written: list[Written] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    final: dict[str, list[ReadItem]] = field(default_factory=dict)


def judge(history: History) -> list[str]:
    """Every broken guarantee."""
    complaints: list[str] = []
    for topic, items in history.final.items():
        complaints += [f"{topic}: {problem}" for problem in _holes(items)]
        complaints += [f"{topic}: {problem}" for problem in _unknown_records(history, topic, items)]
    for written in history.written:
        complaints += [f"{written.name}: {problem}" for problem in _judge_writer(written, history.final[written.topic])]
    for read in history.read:
        complaints += [f"{read.name}: {problem}" for problem in _judge_reader(read, history.final[read.topic])]
    return complaints


def _holes(items: list[ReadItem]) -> list[str]:
    """Seqs are dense, except for reported gaps."""
    found = []
    due = 1
    for item in items:
        if item.seq != due:
            found.append(f"seq {item.seq} where {due} was due, and no gap was reported")
        due = (item.last if item.mark is None else item.seq) + 1
    return found


def _unknown_records(history: History, topic: str, items: list[ReadItem]) -> list[str]:
    offered = {mark for written in history.written if written.topic == topic for mark in written.offered}
    return [f"{item.mark!r} at {item.seq} was never sent" for item in items if item.mark and item.mark not in offered]


def _judge_writer(written: Written, items: list[ReadItem]) -> list[str]:
    found = [] if written.may_fail else [f"a publish failed: {failure}" for failure in written.failures]
    own = [item for item in items if item.mark and item.mark.split(b" ", 1)[0] == written.name.encode()]
    seqs: dict[Mark, int] = {}
    for item in own:
        assert item.mark is not None
        seqs.setdefault(item.mark, item.seq)
    for mark, count in Counter(item.mark for item in own).items():
        if count > 1:
            found.append(f"{mark!r} is stored {count} times")
    for mark, seq in written.acked.items():
        if mark not in seqs:
            found.append(f"{mark!r} was acked and is lost")
        elif seq and seqs[mark] != seq:
            found.append(f"{mark!r} was acked as seq {seq} and is at {seqs[mark]}")
    if written.is_once and not written.may_fail:
        found += [f"{mark!r} was published and is not there" for mark in written.offered if mark not in seqs]
    if written.is_ordered:
        found += _disorder(written, own)
    return found


def _disorder(written: Written, own: list[ReadItem]) -> list[str]:
    """Records are stored in the order in which they were published, for each connection."""
    order = {mark: index for index, mark in enumerate(written.offered)}
    last: dict[bytes, int] = {}
    found = []
    for item in own:
        assert item.mark is not None
        connection = item.mark.split(b" ")[1]
        index = order.get(item.mark, -1)
        if index < last.get(connection, -1):
            found.append(f"{item.mark!r} at seq {item.seq} is after a record that was sent later")
        last[connection] = index
    return found


def _judge_reader(read: Read, items: list[ReadItem]) -> list[str]:
    found = [f"reading failed: {failure}" for failure in read.failures]
    if read.has_seqs:
        found += _holes(read.items)
    got = [(item.seq if read.has_seqs else 0, item.mark) for item in read.items if item.mark]
    due = [(item.seq if read.has_seqs else 0, item.mark) for item in items if item.mark]
    for index, (mine, theirs) in enumerate(zip(got, due, strict=False)):
        if mine != theirs:
            where = due.index(mine) if mine in due else "nowhere"
            return [*found, f"record {index} it read is {mine}, stored is {theirs}; that is at {where}"]
    if len(got) > len(due):
        found.append(f"it read {len(got)} records, stored are {len(due)}")
    elif read.is_whole and len(got) < len(due):
        found.append(f"it read {len(got)} records of {len(due)}")
    return found

"""A distinct type for each kind of number, so that the type checker finds one passed for another.

All of them are plain integers (or text, for `UniqueId`) at run time. This module must not know how the numbers are
stored, sent or made.
"""

from __future__ import annotations

from typing import NewType, Protocol

#: Dense u64 number of a record in its topic, from 1; 0 means "none yet".
Seq = NewType("Seq", int)

#: Index of a batch in the total order of the pod, from 0 (u64).
Position = NewType("Position", int)

#: Byte offset in a topic as version 1 of the wire protocol counts it, from 0 (u64).
Offset = NewType("Offset", int)

#: Number of a topic (u32); 0 means "no topic".
TopicId = NewType("TopicId", int)

#: Incarnation of a topic name: deleting and creating it again starts the next (u64).
TopicEpoch = NewType("TopicEpoch", int)

#: A publisher (u64, not 0); the top bit marks a synthetic one, see `identifiers.py`.
ClientId = NewType("ClientId", int)

#: Number of a batch among all batches of its publisher, from 1 (u64).
ClientSeq = NewType("ClientSeq", int)

#: Incarnation of a publisher, from 1; 0 belongs to synthetic clients, which have no session (u64).
SessionEpoch = NewType("SessionEpoch", int)

#: Leadership number, from 1; holders of an older one are fenced (u32).
Term = NewType("Term", int)

#: One sequencing window of a sequencer (u64).
Cycle = NewType("Cycle", int)

#: One group commit of the lanes (u64).
LaneEpoch = NewType("LaneEpoch", int)

#: Nanoseconds since the Unix epoch as the hybrid clock gives them: milliseconds × 1,000,000 + counter (u64).
TimestampNs = NewType("TimestampNs", int)

#: 128 random bits as 32 lower-case hex digits: the name of a data directory, a boot, a pod.
UniqueId = NewType("UniqueId", str)


class NumberedBatch(Protocol):
    """A batch with its assigned numbers, as the state of a topic needs it."""

    @property
    def position(self) -> Position:
        """Its index in the total order."""
        ...

    @property
    def topic_id(self) -> TopicId:
        """Its topic."""
        ...

    @property
    def base_seq(self) -> Seq:
        """Seq of its first record."""
        ...

    @property
    def base_offset(self) -> Offset:
        """Version 1 offset of its first byte."""
        ...

    @property
    def timestamp_ns(self) -> TimestampNs:
        """The timestamp that the log assigned."""
        ...

    @property
    def record_count(self) -> int:
        """Number of its records."""
        ...

    @property
    def raw_length(self) -> int:
        """Bytes of its uncompressed block."""
        ...

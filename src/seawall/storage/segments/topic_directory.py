"""The directory of a topic: the paths of its segments, how to open them, and their prefaces.

The directory is created with the first segment: a topic that never had a record has none. This module must not know
what is in segments.
"""

from __future__ import annotations

from dataclasses import dataclass

from seawall.core.types import Seq, TopicId
from seawall.errors import CorruptionError
from seawall.io.disk.files import parent_directory
from seawall.io.interfaces import File, Files
from seawall.storage.open_files import OpenFiles
from seawall.storage.preface import DATA_START, FileKind, Preface

__all__ = ["TopicDirectory", "read_segment_preface"]


@dataclass(frozen=True, slots=True)
class TopicDirectory:
    """The directory with the segments of one topic, and the identity that their prefaces must have."""

    files: Files
    directory: str
    directory_id: bytes
    topic_id: TopicId
    #: The cache of open segment files of all topics; None if each file stays open until it is closed.
    open_files: OpenFiles | None = None

    def path(self, name: str) -> str:
        """Path of a file of the topic."""
        return f"{self.directory}/{name}"

    def names(self) -> list[str]:
        """Names in the topic's directory; none if it does not exist yet."""
        try:
            return self.files.list(self.directory)
        except FileNotFoundError:
            return []

    def make_directory(self) -> None:
        """Create the topic's directory durably."""
        self.files.make_directory(self.directory)
        self.files.sync_directory(parent_directory(self.directory))

    def open_segment(self, name: str, *, exclusive: bool = False, read_only: bool = False) -> File:
        """Open the file of a segment, with `exclusive` a new one; `DescriptorsError` if no descriptor is left."""
        opener = self.files if self.open_files is None else self.open_files
        return opener.open(self.path(name), exclusive=exclusive, read_only=read_only)

    def preface(self, first_seq: Seq, created_ns: int = 0) -> Preface:
        """The preface of a segment of the topic."""
        return Preface(
            FileKind.SEGMENT, self.directory_id, first=first_seq, created_ns=created_ns, topic_id=self.topic_id
        )


def read_segment_preface(file: File, home: TopicDirectory, first_seq: Seq) -> Preface | None:
    """The preface of an open segment file; None if it is damaged, which loses no record.

    `CorruptionError` if it is valid and names another segment, which must not be mistaken for this one.
    """
    data = file.read(DATA_START, 0)
    try:
        preface = Preface.parse(data, kind=FileKind.SEGMENT, path=file.path)
    except CorruptionError:
        return None
    if (preface.directory_id, preface.topic_id, preface.first) != (home.directory_id, home.topic_id, first_seq):
        raise CorruptionError(
            f"{file.path}: says it starts at seq {preface.first} of topic {preface.topic_id} in directory "
            f"{preface.directory_id.hex()}; here belongs seq {first_seq} of topic {home.topic_id} in directory "
            f"{home.directory_id.hex()}"
        )
    return preface if len(data) == DATA_START else None

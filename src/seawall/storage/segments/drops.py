"""Removes the files of sealed segments that are no longer needed.

A crash in between leaves sidecars without a segment, which the next open removes. This module must not know why
segments are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from seawall.io.disk.files import remove_if_there
from seawall.storage.segments.names import deletes_name, index_name
from seawall.storage.segments.segment import SealedSegment
from seawall.storage.segments.topic_directory import TopicDirectory


def drop_segments(home: TopicDirectory, segments: Sequence[SealedSegment]) -> None:
    """Remove segments of a topic and their sidecars, with one sync for all.

    The data files go first: the list of deleted records must outlive the data, and a leftover list is harmless.
    """
    for segment in segments:
        segment.close()
        remove_if_there(home.files, segment.path)
    home.files.sync_directory(home.directory)
    for first_seq in (segment.name.first_seq for segment in segments):
        for path in (home.path(index_name(first_seq)), home.path(deletes_name(first_seq))):
            remove_if_there(home.files, path)

"""Sealed segments that nobody needs any more: how their files go.

A crash in between leaves files without a segment, which the next opening removes. This module must not know why they
go.
"""

from __future__ import annotations

from collections.abc import Sequence

from seawall.io.disk.files import remove_if_there
from seawall.storage.segments.names import deletes_name, index_name
from seawall.storage.segments.segment import SealedSegment
from seawall.storage.segments.topic_directory import TopicDirectory


def drop_segments(home: TopicDirectory, segments: Sequence[SealedSegment]) -> None:
    """Remove segments of a topic and what belongs to them, with one sync for all.

    The data goes first: what records were deleted must outlive it, and what is left of that harms nobody.
    """
    for segment in segments:
        segment.close()
        remove_if_there(home.files, segment.path)
    home.files.sync_directory(home.directory)
    for first_seq in (segment.name.first_seq for segment in segments):
        for path in (home.path(index_name(first_seq)), home.path(deletes_name(first_seq))):
            remove_if_there(home.files, path)

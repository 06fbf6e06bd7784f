"""The answer to FILES: the sealed segments that hold a range of seqs, and which of their records are visible.

The answer is one consistent snapshot. It contains sealed segments only: a reader gets the rest over the connection. It
is empty for topics in memory, and for readers with a rate limit, which could read files faster.

This module must not know connections, nor read a segment.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Final

from seawall.core.identifiers import UNIQUE_ID_SIZE
from seawall.core.types import Seq
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import TopicLog
from seawall.limits import FILES_RUNS_MAX, FILES_SEGMENTS_MAX
from seawall.server.read.fetch_responses import topic_of
from seawall.wire.lwp2.files import FilesReply, FilesRequest

_LAST_SEQ: Final = attrgetter("name.last_seq")


def stored_files(store: Store, request: FilesRequest, *, is_allowed: bool) -> FilesReply:
    """The reply to FILES; empty unless `is_allowed`."""
    topic = topic_of(store, request.topic_id)
    log = store.queries.topic_log(topic.topic_id)
    if log is None or not log.is_kept or not is_allowed:
        return FilesReply("", bytes(UNIQUE_ID_SIZE), request.first_seq, (), (), ())
    names, end = _sealed(log, request)
    first, last = request.first_seq, Seq(end - 1)
    live = list(islice(topic.live_runs(first, last), FILES_RUNS_MAX + 1)) if first <= last else []
    if len(live) > FILES_RUNS_MAX:
        # Another run may start right after the last one that fits: end the reply there.
        del live[FILES_RUNS_MAX:]
        last = live[-1][1]
    gaps = topic.gaps(first, last) if first <= last else []
    directory = Path(log.directory.directory).parent.parent.absolute()
    return FilesReply(str(directory), log.directory.directory_id, Seq(last + 1), tuple(names), tuple(live), tuple(gaps))


def _sealed(log: TopicLog, request: FilesRequest) -> tuple[list[str], Seq]:
    """The sealed segments with records of a range, and the seq at which they end."""
    near = bisect_left(log.sealed, request.first_seq, key=_LAST_SEQ)
    names: list[str] = []
    end = request.first_seq
    for segment in islice(log.sealed, near, near + FILES_SEGMENTS_MAX):
        if segment.name.first_seq >= request.end_seq:
            # There are only gaps before this segment.
            return names, request.end_seq
        names.append(str(segment.name))
        end = min(Seq(segment.name.last_seq + 1), request.end_seq)
    return names, end

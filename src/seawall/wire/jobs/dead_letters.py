"""The marks of a dead letter: what its `meta` says about the job that it was.

A dead letter has the value, key, headers, tag and node of its job. `meta` is a JSON object with

    $dead_letter_from         the queue
    $dead_letter_src_seq      the seq of the job there
    $dead_letter_deliveries   how often it was delivered
    $dead_letter_reason       why it is here

and with the meta of the job: its members if it is a JSON object, else its text as `$meta`. Removing the marks gives
the job again. This module must not know who writes dead letters.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

FROM: Final = "$dead_letter_from"
SOURCE_SEQ: Final = "$dead_letter_src_seq"
DELIVERIES: Final = "$dead_letter_deliveries"
REASON: Final = "$dead_letter_reason"
MARKS: Final = (FROM, SOURCE_SEQ, DELIVERIES, REASON)
#: Where a meta is kept that is not a JSON object.
_OTHER_META: Final = "$meta"


def marked_meta(meta: bytes | None, queue: str, seq: int, deliveries: int, reason: str) -> bytes:
    """The meta of the dead letter of a job with this meta."""
    marks = {FROM: queue, SOURCE_SEQ: seq, DELIVERIES: deliveries, REASON: reason}
    return _encoded(parsed_meta(meta) | marks)


def unmarked_meta(meta: dict[str, object]) -> bytes | None:
    """The meta of the job that a dead letter with this parsed meta was; None for none."""
    own = {key: value for key, value in meta.items() if key not in MARKS}
    other = own.get(_OTHER_META)
    if len(own) == 1 and isinstance(other, str):
        return other.encode(errors="surrogateescape")
    return _encoded(own) if own else None


def parsed_meta(meta: bytes | None) -> dict[str, object]:
    """A meta as a JSON object."""
    if meta is None:
        return {}
    # Deeply nested JSON exceeds the recursion limit.
    with suppress(ValueError, RecursionError):
        found = json.loads(meta)
        if isinstance(found, dict):
            return found
    return {_OTHER_META: meta.decode(errors="surrogateescape")}


def _encoded(meta: dict[str, object]) -> bytes:
    # In ASCII: JSON may contain what UTF-8 does not.
    return json.dumps(meta, separators=(",", ":")).encode()

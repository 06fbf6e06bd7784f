"""The marks of dead letters: marking and unmarking give the meta of the job again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from seawall.wire.jobs.dead_letters import MARKS, marked_meta, parsed_meta, unmarked_meta

TEXTS = st.text().filter(lambda key: key not in MARKS and key != "$meta")
OBJECTS = st.dictionaries(TEXTS, st.integers() | TEXTS | st.none(), min_size=1)


@given(OBJECTS.map(lambda meta: json.dumps(meta, separators=(",", ":")).encode()) | st.none() | st.binary())
def test_unmarking_gives_the_meta_of_the_job_again(meta: bytes | None) -> None:
    marked = marked_meta(meta, "mails", 17, 3, "it failed \ud800")
    document = json.loads(marked)
    assert [document[mark] for mark in MARKS] == ["mails", 17, 3, "it failed \ud800"]
    again = unmarked_meta(parsed_meta(marked))
    if again != meta:
        # An object that is written in another way, or is empty.
        assert meta is not None
        assert parsed_meta(again) == json.loads(meta)


def test_meta_that_is_no_object_is_kept_as_text() -> None:
    assert parsed_meta(b"plain \xff") == {"$meta": "plain \udcff"}
    assert parsed_meta(b"[1]") == {"$meta": "[1]"}
    assert parsed_meta(b"[" * 100_000) == {"$meta": "[" * 100_000}
    assert unmarked_meta(parsed_meta(marked_meta(b"plain \xff", "q", 1, 1, "r"))) == b"plain \xff"
    assert unmarked_meta({}) is None

"""Exactly-once through Spark under kills of a driver, an executor and a server; `make chaos` kills more of them.

The checker finds faults that are planted in a valid copy.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_chaos import KINDS, Patience, SparkChaos
from spark_history import Attempts, Outcome, Row, compare, digest, judge_failures, read_event_logs

GIVEN: list[Row] = [(seq, digest(b"%d" % seq)) for seq in (1, 2, 3, 1_000_004, 1_000_005)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_kills_lose_and_duplicate_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWALL_STORAGE_CHECKPOINT_SIZE", str(1 << 20))
    outcome = SparkChaos(3, tmp_path, 3, Patience(whole_s=540), cores=1).run()
    assert not outcome.complaints, str(outcome)
    assert Counter(outcome.kills) == dict.fromkeys(KINDS, 1)
    assert outcome.records > 100
    assert outcome.attempts.failed


@pytest.mark.slow
def test_a_run_without_progress_is_reported(tmp_path: Path) -> None:
    outcome = SparkChaos(3, tmp_path, 3, Patience(whole_s=0), cores=1).run()
    [complaint] = outcome.complaints
    assert complaint.startswith("no progress after the start in 300 s, or the time for all is over: batches (-1, -1)")
    assert outcome.kills == []


def test_a_valid_copy_in_any_order_has_no_complaint() -> None:
    assert compare("copy", GIVEN, reversed(GIVEN)) == []


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (GIVEN[:2] + GIVEN[3:], "copy: record 3 is lost"),
        ([*GIVEN, GIVEN[0]], "copy: record 1 is there 2 times"),
        ([*GIVEN, (4, digest(b"4"))], "copy: record 4 was never in the input"),
        ([*GIVEN[:-1], (1_000_005, digest(b"5"))], "copy: record 1000005 has another value than in the input"),
    ],
)
def test_a_planted_fault_is_found(found: list[Row], complaint: str) -> None:
    assert compare("copy", GIVEN, found) == [complaint]


def test_a_lost_and_a_duplicated_record_are_both_found() -> None:
    assert len(compare("copy", GIVEN, [*GIVEN[:-1], GIVEN[0]])) == 2


def test_impossible_failures_are_complaints() -> None:
    may = "life 1, query topic: NotFoundError: not all of the seqs 1 to 9 are staged"
    assert judge_failures([may]) == []
    assert judge_failures([may, "query topic: seawall.errors.DataLossError: lost"]) != []
    assert judge_failures(["query topic: seawall.errors.FencedError: another run"]) != []


def test_attempts_are_counted(tmp_path: Path) -> None:
    attempts = Attempts()
    lines = [
        *("topic 0 0 0 failed 5", "topic 0 0 1 whole 9", "topic 0 0 2 whole 9", "topic 0 1 0 whole 0"),
        *("topic 1 0 0 slow 3", "topic 1 0 0 whole 9", "parquet 1 0 0 whole 9", "parquet 1 0 0 slow 9"),
    ]
    attempts.read_journal("\n".join(lines))
    starts = [
        json.dumps({"Event": "SparkListenerTaskStart", "Task Info": {"Speculative": is_second}}, separators=(",", ":"))
        for is_second in (True, False)
    ]
    (tmp_path / "app").write_text("\n".join([*starts, '{"Event":"Other"}', starts[0][:-5]]))
    (tmp_path / ".app.crc").write_bytes(b"\xff")
    read_event_logs(tmp_path, attempts)
    assert attempts == Attempts(whole=3, thrown=1, failed=1, slow=2, speculative=1)
    assert "3 attempts handed all their rows to the sink, 1 of them were thrown away" in str(
        Outcome(7, attempts=attempts)
    )

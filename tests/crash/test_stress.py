"""All operations at once for two seconds, with every result checked; `make stress` runs for a minute."""

from pathlib import Path

import pytest
from crash_stress import CAPPED, DELETED, GROWING, Reader, Stress, run_stress


def test_all_operations_at_once_give_correct_results(tmp_path: Path) -> None:
    counts = run_stress(tmp_path / "data", 2)
    assert all(counts[name] for name in ("waits-0", "waits-1", "publishes", "checkpoints")), counts


def reader_of(topic: str) -> Reader:
    return Reader(Stress(0, 0), topic)


def test_the_checker_finds_wrong_results() -> None:
    with pytest.raises(AssertionError, match="passed over without a reason"):
        reader_of(GROWING).records([(1, b"growing w 1 - "), (3, b"growing w 3 - ")])
    with pytest.raises(AssertionError, match="out of order"):
        reader_of(GROWING).records([(1, b"growing w 2 - "), (2, b"growing w 1 - ")])
    with pytest.raises(AssertionError, match="1 after 1"):
        reader_of(GROWING).records([(1, b"growing w 1 - "), (1, b"growing w 1 - ")])
    with pytest.raises(AssertionError):
        reader_of(CAPPED).records([(1, b"growing w 1 - ")])
    reader = reader_of(DELETED)
    reader.records([(1, b"deleted w 1 - ")])
    reader.begin(1)
    with pytest.raises(AssertionError, match="seq 1 is"):
        reader.records([(1, b"deleted w 2 - ")])

"""The figures of recovery: both sides use the same log, which exists while either of them is open."""

from pathlib import Path

import pytest

from seawall.bench.figures import recovery_figures
from seawall.limits import KIB, MIB


def test_both_sides_share_a_log_that_the_last_removes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recovery_figures, "LOG_SIZES", {1: 8 * KIB, 16: MIB})
    figures = list(recovery_figures.recovery_figures(tmp_path))
    assert [figure.goal is not None for figure in figures] == [False, True]
    for figure in figures:
        assert figure.baseline is not None
        with figure.subject() as recover, figure.baseline.subject() as read:
            assert len(list(tmp_path.iterdir())) == 1
            assert recover(0.0) > 0
            assert read(0.0) > 0
        assert list(tmp_path.iterdir()) == []
        with figure.baseline.subject() as read:
            assert read(0.0) > 0
    assert list(tmp_path.iterdir()) == []

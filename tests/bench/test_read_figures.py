"""The large topic that several figures share: built once, removed after the last, and also if that never comes."""

from pathlib import Path

from seawall.bench.figures.read_figures import LargeTopic
from seawall.engine.api.embedded import EmbeddedLog


def test_figures_share_it_and_the_last_removes_it(tmp_path: Path) -> None:
    logs: list[EmbeddedLog] = []

    def prepare(log: EmbeddedLog):
        logs.append(log)
        return lambda _seconds: float(log.describe("bench").record_count)

    topic = LargeTopic(tmp_path, 2_000, figures=2)
    for turn in range(2):
        with topic.subject(prepare)() as run:
            assert run(0.0) == 2_000
        assert len(list(tmp_path.iterdir())) == 1 - turn
    assert logs[0] is logs[1]


def test_it_is_removed_with_whoever_made_it(tmp_path: Path) -> None:
    topic = LargeTopic(tmp_path, 200, figures=2)
    with topic.subject(lambda _log: lambda _seconds: 1.0)():
        assert len(list(tmp_path.iterdir())) == 1
    log = topic._log
    assert log is not None
    log.close()
    del topic
    assert list(tmp_path.iterdir()) == []

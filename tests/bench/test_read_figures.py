"""The large topic that several figures share: built once, and removed after the last or with its owner."""

from pathlib import Path

from seawall.bench.figures.read_figures import LargeTopic
from seawall.engine.api.embedded import EmbeddedLog


def test_figures_share_the_topic_and_the_last_removes_it(tmp_path: Path) -> None:
    logs: list[EmbeddedLog] = []

    def prepare(log: EmbeddedLog):
        logs.append(log)
        return lambda _seconds: float(log.describe("bench").record_count)

    topic = LargeTopic(tmp_path, 2_000, figures=2)
    for number in range(2):
        with topic.subject(prepare)() as run:
            assert run(0.0) == 2_000
        assert len(list(tmp_path.iterdir())) == 1 - number
    assert logs[0] is logs[1]


def test_the_topic_is_removed_with_its_owner(tmp_path: Path) -> None:
    logs: list[EmbeddedLog] = []

    def prepare(log: EmbeddedLog):
        logs.append(log)
        return lambda _seconds: 1.0

    topic = LargeTopic(tmp_path, 200, figures=2)
    with topic.subject(prepare)():
        assert len(list(tmp_path.iterdir())) == 1
    logs.pop().close()
    del topic
    assert list(tmp_path.iterdir()) == []

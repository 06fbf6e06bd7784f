"""Pressure: what raises it, what it causes, and that it ends."""

from __future__ import annotations

from seawall.core.delivery_pressure import PAUSE_NS_MAX, SAMPLE_NS, Governor

MS = 1_000_000


class Load:
    """A governor that is sampled as often as it wants."""

    def __init__(self) -> None:
        self.now_ns = 7
        self.governor = Governor(self.now_ns)

    def run(self, samples: int, *, wait_ns: int = 0, topics: int = 0, reads: int = 0) -> Governor:
        for _ in range(samples):
            self.now_ns += SAMPLE_NS
            for _ in range(10):
                self.governor.waited(wait_ns)
            self.governor.sample(self.now_ns, topics, reads)
        return self.governor


def test_an_idle_server_has_no_pressure() -> None:
    governor = Load().run(50, wait_ns=100_000)
    assert governor.pressure < 0.05
    assert governor.merge_ns == 0
    assert not governor.defers


def test_waits_topics_and_reads_are_pressure_each() -> None:
    for load in ({"wait_ns": 5 * MS}, {"topics": 512}, {"reads": 32}, {"wait_ns": 1 << 60, "topics": 1 << 30}):
        assert 0.95 < Load().run(20, **load).pressure <= 1.0
    assert abs(Load().run(30, wait_ns=5 * MS // 2).pressure - 0.5) < 0.05


def test_one_sample_is_no_pressure() -> None:
    governor = Load().run(1, wait_ns=1_000 * MS)
    assert governor.pressure < 0.4
    assert not governor.defers


def test_samples_are_taken_at_an_interval() -> None:
    load = Load()
    load.run(1)
    for _ in range(100):
        load.governor.sample(load.now_ns + SAMPLE_NS - 1, 10_000, 0)
    assert load.governor.pressure == 0.0


def test_records_are_merged_for_longer_as_pressure_rises() -> None:
    found = [Load().run(40, wait_ns=share * MS // 2).merge_ns for share in range(11)]
    assert found == sorted(found)
    assert found[:3] == [0, 0, 0]
    assert 19 * MS < found[10] <= 20 * MS


def test_work_is_deferred_until_pressure_is_well_below() -> None:
    load = Load()
    assert not load.run(30, wait_ns=5 * MS * 7 // 10).defers
    assert load.run(20, wait_ns=5 * MS * 9 // 10).defers
    # Lower, but not low enough.
    assert load.run(10, wait_ns=5 * MS * 7 // 10).defers
    assert not load.run(20, wait_ns=5 * MS // 2).defers


def test_a_pause_ends_although_pressure_lasts_and_is_not_repeated_at_once() -> None:
    load = Load()
    paused = [load.run(1, wait_ns=5 * MS).defers for _ in range(300)]
    longest = most = 0
    for each in paused:
        longest = longest + 1 if each else 0
        most = max(most, longest)
    assert most * SAMPLE_NS <= PAUSE_NS_MAX
    assert 0.3 < sum(paused) / len(paused) < 0.6


def test_pressure_ends_while_nobody_samples() -> None:
    load = Load()
    assert load.run(40, wait_ns=5 * MS).pressure > 0.9
    load.now_ns += 100 * SAMPLE_NS
    assert load.run(1).pressure < 0.01
    assert not load.governor.defers

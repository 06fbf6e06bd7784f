"""Routers against a plain model, with restarts and crashes, and a crash at any call of a history.

INV-ROUTER-ONWARD: every record of a source that is not removed before is copied exactly once, in order.
"""

from __future__ import annotations

import itertools

import pytest
from retention_model import append_batches, batch_of, opened, read_live
from router_model import ROUTERS, SOURCE, RoutedStore, Written, number_of, values

from seawall.testing import SimCrash
from seawall.wire.format.codes import GapReason


@pytest.mark.parametrize("seed", range(8))
def test_routers_do_what_a_plain_model_does(seed: int) -> None:
    both = RoutedStore(seed)
    for number in range(60):
        both.step()
        both.check()
        if number % 15 == 14:
            both.reopen(crash=both.chance.random() < 0.5)
            both.drain()
            both.check()
    both.store.close()
    both.store = opened(both.disk, both.clock)
    both.check()
    assert both.store.verify().findings == ()


class CrashedStore(RoutedStore):
    """A store that may crash at any call; it remembers what was acknowledged, tried, and seen in the copies."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tried: dict[int, Written] = {}
        self.seen: dict[str, list[int]] = {"all": [], "some": [], "chain": []}
        for name in ROUTERS:
            router = ROUTERS[name]
            self.store.routing.put(name, router.source, router.dest, router.settings, create_dest=True)

    def run(self) -> None:
        for _ in range(22):
            self.chance.choice(
                (
                    *[self.append] * 5,
                    *[self.make_steps] * 6,
                    *(self.delete_some, self.evict_some, self.checkpoint),
                )
            )()
        self.store.close()

    def append(self) -> None:
        groups = [self._group() for _ in range(self.chance.randint(1, 3))]
        self.tried |= {each.number: each for group in groups for each in group}
        self.append_groups(groups)

    def append_groups(self, groups: list[list[Written]]) -> None:
        topic_id = self.store.catalog.named(SOURCE).topic_id
        append_batches(self.store, *(batch_of(topic_id, [each.record() for each in group]) for group in groups))

    def make_steps(self) -> None:
        self.store.routing.step(self.chance.choice(sorted(ROUTERS)))
        for name, numbers in self.seen.items():
            self.seen[name] = [*numbers, *(each for each in values(self.store, name) if each not in numbers)]

    def delete_some(self) -> None:
        self.store.delete_records(SOURCE, before_seq=self.store.catalog.named(SOURCE).floor + 3)

    def evict_some(self) -> None:
        self.store.configure_topic(SOURCE, {"cap_records": 10})
        self.store.maintenance.retain()
        self.store.configure_topic(SOURCE, {"cap_records": 0})

    def recover(self) -> None:
        self.store = opened(self.disk, self.clock)
        for name in self.store.routing.upstream(None):
            while self.store.routing.due(name) is not None:
                self.store.routing.step(name)
        source = values(self.store, SOURCE)
        infos = {each.name: each for each in self.store.routing.infos()}
        for name in ROUTERS:
            copies = values(self.store, name)
            assert copies == sorted(set(copies)), f"{name}: copied twice, or out of order"
            matching = [each for each in source if name != "some" or (self.tried[each].tag or b"").startswith(b"a")]
            assert {*matching} <= {*copies}, f"{name}: not copied"
            assert {*self.seen[name]} <= {*copies}, f"{name}: copies are gone"
            assert all((self.tried[each].tag or b"").startswith(b"a") for each in copies if name == "some")
            assert infos[name].forwarded == len(copies)
            _, gaps = read_live(self.store, name)
            assert {gap.reason for gap in gaps} <= {GapReason.CRASH, GapReason.SOURCE_TRIM}
        assert values(self.store, "chain") == values(self.store, "all")
        records, _ = read_live(self.store, "some")
        assert all(self.tried[number_of(each)].size < len(each.value) for each in records.values())


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_no_crash_repeats_or_loses_copies(keep: str) -> None:
    crashes = 0
    for seed in range(3):
        for nth in itertools.count(1 + seed, 13):
            history = CrashedStore(seed)
            history.disk.crash_after(nth)
            try:
                history.run()
                break
            except SimCrash:
                history.disk.crash(keep=keep)
            crashes += 1
            history.recover()
            history.store.close()
            history.recover()
            history.store.close()
    assert crashes > 30

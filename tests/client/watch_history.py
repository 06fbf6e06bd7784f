"""A random history of a log, and readers that watch it: what they must get is what the log itself says.

    history = WatchHistory(random.Random(3))
    history.change(log)                    # a random change of topics and records
    watcher = Watcher(log, history)        # reads random amounts, and notes a cursor after each item
    watcher.read(log)
    watcher.check(log)                     # against plain reads of each topic, from every cursor

The topics `a` to `d` match the watch, by name or by prefix; `other` does not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from seawall.api.received import ReceivedBatch
from seawall.api.watch_cursor import parse_cursor
from seawall.api.watch_items import TopicCaughtUp, TopicDeleted, WatchGap, WatchItem
from seawall.core.watches import WatchPosition
from seawall.wire.format.codes import GapReason

WATCHED = ["a", "audit.*"]
TOPICS = ("a", "audit.b", "audit.c", "audit.d", "other")
CAP_RECORDS = 12

#: A record as the value that was published, and a gap as its seqs.
Shown = tuple[str, int, bytes] | tuple[str, int, int]


def shown(items: list[Any]) -> list[Shown]:
    """Records with their seqs, and gaps; adjacent gaps as one."""
    found: list[Shown] = []
    for item in items:
        if isinstance(item, ReceivedBatch):
            found += [("record", record.seq, record.value) for record in item]
        elif item.last_seq >= item.first_seq:
            if found and found[-1][0] == "gap" and found[-1][2] == item.first_seq - 1:
                found[-1] = ("gap", found[-1][1], item.last_seq)
            else:
                found.append(("gap", item.first_seq, item.last_seq))
    return found


class WatchHistory:
    """Random changes of a log."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.published = 0

    def create_all(self, log: Any) -> None:
        """Create every topic."""
        for topic in TOPICS:
            self._create(log, topic)

    def change(self, log: Any) -> None:
        """Make one change."""
        chance = self.chance
        topic = chance.choice(TOPICS)
        if topic not in log.topics():
            self._create(log, topic)
            return
        match chance.choices(("publish", "delete", "end", "recreate"), (12, 2, 1, 1))[0]:
            case "publish":
                for _ in range(chance.randint(1, 4)):
                    count = chance.randint(1, 4)
                    log.publish(topic, [b"%d" % (self.published + number) for number in range(count)])
                    self.published += count
            case "delete":
                log.delete(topic, before_seq=chance.randint(1, log.describe(topic).next_seq))
            case "end":
                log.delete_topic(topic)
            case "recreate":
                log.delete_topic(topic)
                self._create(log, topic)

    def _create(self, log: Any, topic: str) -> None:
        # A cap evicts what slow watchers have not read.
        log.create_topic(topic, durability=self.chance.choice(["fsync", "disk", "memory"]), cap_records=CAP_RECORDS)


class Watcher:
    """A watch that is closed and continued at random, with every cursor on its way."""

    def __init__(self, log: Any, chance: random.Random) -> None:
        self._chance = chance
        self._watch = log.watch(WATCHED)
        self.items: list[WatchItem] = []
        #: The cursor before the first item, and after each.
        self.cursors: list[str] = [self._watch.cursor]

    def read(self, log: Any) -> None:
        """Read some of the items that are there; now and then continue with another watch."""
        if self._chance.random() < 0.3:
            self.resume(log)
        for item in coming(self._watch, log, self._chance.randint(1, 5)):
            self.items.append(item)
            self.cursors.append(self._watch.cursor)

    def read_rest(self, log: Any) -> None:
        """Read everything that is there."""
        self.items += coming(self._watch, log)

    def resume(self, log: Any) -> None:
        """Continue with a watch from the newest cursor."""
        self._watch.close()
        self._watch = log.watch(WATCHED, cursor=self.cursors[-1])

    def close(self) -> None:
        """Close the watch."""
        self._watch.close()

    def check_order(self) -> None:
        """Each life of a topic was read in order, nothing twice, and every seq that is left out has its report."""
        reached: dict[str, int] = {}
        for item in self.items:
            topic = item.topic
            if isinstance(item, TopicDeleted) or (isinstance(item, WatchGap) and item.reason is GapReason.RECREATED):
                reached[topic] = 1
            elif isinstance(item, TopicCaughtUp):
                assert item.next_seq >= reached.get(topic, 1), item
            else:
                assert item.first_seq >= reached.get(topic, 1), item
                reached[topic] = item.last_seq + 1


def watched_topics(log: Any) -> list[str]:
    """The topics that match the watch."""
    return [name for name in log.topics() if name in WATCHED or name.startswith("audit.")]


def has_more(log: Any, cursor: str) -> bool:
    """True if a watch at a cursor is certain to get another item."""
    positions, names = dict(parse_cursor(cursor).positions), watched_topics(log)
    if set(positions) - set(names):
        return True
    for name in names:
        position = positions.get(name, WatchPosition(log.describe(name).topic_epoch, 1))
        if position.epoch != log.describe(name).topic_epoch or log.read(name, position.next_seq):
            return True
    return False


def coming(watch: Any, log: Any, count: int = 1 << 30) -> Iterator[WatchItem]:
    """The next items of a watch, at most `count`, until it has everything that the log has now."""
    items = iter(watch)
    while count and has_more(log, watch.cursor):
        yield next(items)
        count -= 1


def check_rest(log: Any, cursor: str, items: list[WatchItem]) -> None:
    """What a watch from a cursor has got is what plain reads of the topics return from there."""
    positions = dict(parse_cursor(cursor).positions)
    names = watched_topics(log)
    assert {item.topic for item in items if isinstance(item, TopicDeleted)} == set(positions) - set(names)
    for name in names:
        mine = [item for item in items if item.topic == name and not isinstance(item, TopicCaughtUp | TopicDeleted)]
        info = log.describe(name)
        position = positions.get(name, WatchPosition(info.topic_epoch, 1))
        first = position.next_seq
        if position.epoch != info.topic_epoch:
            gap = mine.pop(0)
            assert gap == WatchGap(1, info.next_seq - 1, GapReason.RECREATED, name)
            first = info.floor
        assert shown(mine) == shown(list(log.follow(name, first))), (name, position)

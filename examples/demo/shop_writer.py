"""One writer of the shop, a process: publishes its groups, sends some batches again, and tells what was acked.

    python shop_writer.py URL WRITER GROUPS SECONDS

Each topic has a publisher of its own: a session with three connections, over which batches go in turn. Batches have the
numbers that the writer gives them, and go out in the order of `groups_of`, which is not that of their numbers. Now and
then one that was acked is sent again under its number, as a client does that has lost the answer.

Standard output is a JSON array a line, for the demo: what was acked, and what became of repetitions.

The lowest number of a group goes first, and nothing is waited for within a group: so a server that is started again
never hears of a number whose predecessor this process has not handed in yet.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque
from contextlib import ExitStack

from demo_tether import end_with_parent
from shop_events import TOPICS, Batch, groups_of

import seawall
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.publisher import RemotePublisher

CONNECTIONS = 3
#: How long a server that is gone is looked for.
PATIENCE_S = 120.0
#: Groups that may be on their way.
UNDER_WAY = 6
#: One of so many batches is sent again, one of the last few that were acked.
REPEATED_ONE_OF = 10
REMEMBERED = 20


class Writer:
    """Publishes, and keeps count."""

    def __init__(self, publishers: dict[str, RemotePublisher], seed: int) -> None:
        self._publishers = publishers
        self._random = random.Random(seed)
        self._under_way: deque[list[tuple[Batch, bool, Delivery]]] = deque()
        self._acked: dict[str, deque[Batch]] = {topic: deque(maxlen=REMEMBERED) for topic in publishers}

    def send(self, group: list[Batch]) -> None:
        """Send a group, and with it what is sent again; waits while too many are under way."""
        while len(self._under_way) >= UNDER_WAY:
            self.settle()
        sent = [(batch, False, self._publish(batch)) for batch in group]
        acked = self._acked[group[0].topic]
        for _ in group:
            if acked and not self._random.randrange(REPEATED_ONE_OF):
                # Out of the deque: a number must not be under way twice.
                again = acked[index := self._random.randrange(len(acked))]
                del acked[index]
                sent.append((again, True, self._publish(again)))
        self._under_way.append(sent)

    def settle(self) -> None:
        """Wait for the oldest group, and tell what became of it."""
        for batch, is_repeated, delivery in self._under_way.popleft():
            delivery.result()
            kind = "repeated" if is_repeated else "acked"
            tell([kind, *batch, delivery.first_seq, delivery.is_duplicate])
            self._acked[batch.topic].append(batch)

    def finish(self) -> None:
        """Wait for everything."""
        while self._under_way:
            self.settle()

    def _publish(self, batch: Batch) -> Delivery:
        records = [event.record() for event in batch.events()]
        return self._publishers[batch.topic].publish(records, client_seq=batch.client_seq)


def tell(line: list[object]) -> None:
    """Tell the demo."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Publish all groups, evenly over the seconds given; what a crash has delayed is caught up with."""
    url, writer, groups, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    end_with_parent()
    with ExitStack() as ends:
        log = ends.enter_context(seawall.connect(url, name=f"writer-{writer}", timeout_s=PATIENCE_S))
        publishers = {
            topic: ends.enter_context(
                log.publisher(topic, client_id=1_000 * (number + 1) + writer, connections=CONNECTIONS)
            )
            for number, topic in enumerate(TOPICS)
        }
        working = Writer(publishers, writer)
        begun = time.monotonic()
        for index, group in enumerate(groups_of(writer, groups)):
            time.sleep(max(0.0, begun + seconds * index / groups - time.monotonic()))
            working.send(group)
        working.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())

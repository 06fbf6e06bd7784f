"""A writer process of the shop: publishes its groups, sends some batches again, and reports the acks.

    python shop_writer.py URL WRITER GROUPS SECONDS

Each topic has its own publisher: a session with three connections, used round-robin. The writer assigns the client seqs
of its batches, and sends them in the order of `groups_of`, which is not the order of the client seqs. Sometimes it
sends an acked batch again under its client seq, like a client that has lost the ack.

For acked orders that want an invoice, it sends a job, which workers execute (`shop_tasks`).

It writes one JSON array per line to standard output, for the demo: acks, the results of repetitions, and sent jobs.

Within a group, the lowest client seq goes first and the writer does not wait. So a restarted server never receives a
client seq before this process has published all lower ones.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque
from contextlib import ExitStack

from demo_tether import end_with_parent
from shop_events import TOPICS, Batch, groups_of, invoice_of
from shop_tasks import send, tasks

import seawall
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.publisher import RemotePublisher

CONNECTIONS = 3
#: How long to wait for an unreachable server.
TIMEOUT_S = 120.0
#: The most groups in flight.
IN_FLIGHT_MAX = 6
#: For one batch in this many, one of the last few acked batches is sent again.
REPEATED_ONE_OF = 10
REMEMBERED = 20


class Writer:
    """Publishes groups and keeps the last acked batches."""

    def __init__(self, publishers: dict[str, RemotePublisher], seed: int) -> None:
        self._publishers = publishers
        self._random = random.Random(seed)
        self._in_flight: deque[list[tuple[Batch, bool, Delivery]]] = deque()
        self._acked: dict[str, deque[Batch]] = {topic: deque(maxlen=REMEMBERED) for topic in publishers}

    def send(self, group: list[Batch]) -> None:
        """Send a group and some repetitions; waits while too many groups are in flight."""
        while len(self._in_flight) >= IN_FLIGHT_MAX:
            self.settle()
        sent = [(batch, False, self._publish(batch)) for batch in group]
        acked = self._acked[group[0].topic]
        for _ in group:
            if acked and not self._random.randrange(REPEATED_ONE_OF):
                # Removed from the deque: a client seq must not be in flight twice.
                again = acked[index := self._random.randrange(len(acked))]
                del acked[index]
                sent.append((again, True, self._publish(again)))
        self._in_flight.append(sent)

    def settle(self) -> None:
        """Wait for the oldest group and report its acks."""
        for batch, is_repeated, delivery in self._in_flight.popleft():
            delivery.result()
            kind = "repeated" if is_repeated else "acked"
            report([kind, *batch, delivery.first_seq, delivery.is_duplicate])
            self._acked[batch.topic].append(batch)
            if not is_repeated:
                self._send_invoices(batch)

    def finish(self) -> None:
        """Wait for all groups."""
        while self._in_flight:
            self.settle()

    def _send_invoices(self, batch: Batch) -> None:
        for invoice in map(invoice_of, batch.events()):
            if invoice is not None:
                report(["sent", invoice.order, send(invoice)])

    def _publish(self, batch: Batch) -> Delivery:
        records = [event.record() for event in batch.events()]
        return self._publishers[batch.topic].publish(records, client_seq=batch.client_seq)


def report(line: list[object]) -> None:
    """Send a line to the demo."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Publish all groups, evenly over the given seconds; catches up after a crash of the server."""
    url, writer, groups, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    end_with_parent()
    tasks.use(url)
    with ExitStack() as stack:
        stack.callback(tasks.close)
        log = stack.enter_context(seawall.connect(url, name=f"writer-{writer}", timeout_s=TIMEOUT_S))
        publishers = {
            topic: stack.enter_context(
                log.publisher(topic, client_id=1_000 * (number + 1) + writer, connections=CONNECTIONS)
            )
            for number, topic in enumerate(TOPICS)
        }
        sender = Writer(publishers, writer)
        started = time.monotonic()
        for index, group in enumerate(groups_of(writer, groups)):
            time.sleep(max(0.0, started + seconds * index / groups - time.monotonic()))
            sender.send(group)
        sender.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())

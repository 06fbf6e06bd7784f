"""The events of a web shop: orders, payments and clicks, each a pure function of its topic, writer and number.

So the checks know what every writer has sent: the writers generate their events here, and the checks generate them
again. A writer sends *groups*: four batches of one topic, out of order. Some orders want an invoice, which is a job.

This module must not know servers, files or Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from seawall.api.publishable import Message

#: The topics and their order levels: orders and payments keep the order of each writer, clicks need none.
TOPICS = {"orders": 5, "payments": 5, "clicks": 2}
#: The topics of the groups of a writer, repeated.
CYCLE = ("orders", "clicks", "payments", "clicks", "clicks")
GROUP_BATCHES = 4
BATCH_EVENTS = 25
GROUP_EVENTS = GROUP_BATCHES * BATCH_EVENTS

COUNTRIES = ("AT", "CH", "DE", "DK", "ES", "FR", "IT", "NL")
PAGES = ("/", "/shoes", "/hats", "/coats", "/cart", "/help")
CUSTOMERS = 5_000

#: One order in so many wants an invoice, and one invoice in so many wants to be a fax.
INVOICED_ONE_OF = 100
FAXED_ONE_OF = 20
#: How often a fax is tried, and why it always fails.
FAX_ATTEMPTS = 3
FAX_ERROR = "nobody answers the fax"


class Batch(NamedTuple):
    """Events of one topic that a writer sends together, under one client seq."""

    topic: str
    writer: int
    client_seq: int

    @property
    def numbers(self) -> range:
        """The numbers of its events."""
        return range((self.client_seq - 1) * BATCH_EVENTS, self.client_seq * BATCH_EVENTS)

    def events(self) -> list[Event]:
        """Its events."""
        return [event_of(self.topic, self.writer, number) for number in self.numbers]


@dataclass(frozen=True, slots=True)
class Event:
    """One event, and its amount of money: `cents` is 0 if there is none."""

    topic: str
    writer: int
    number: int
    content: dict[str, object]
    country: str
    cents: int
    key: str | None
    headers: tuple[tuple[str, str], ...]

    @property
    def event_id(self) -> str:
        """Its unique id."""
        return f"{self.topic}-{self.writer}-{self.number}"

    @property
    def value(self) -> bytes:
        """The bytes of its value in the log."""
        return json.dumps(self.content, separators=(",", ":")).encode()

    def record(self) -> Message | dict[str, object]:
        """The record to publish."""
        if self.key is None and not self.headers:
            return self.content
        return Message(self.content, key=self.key, headers=self.headers)


class Invoice(NamedTuple):
    """The invoice of an order."""

    order: str
    cents: int
    by_fax: bool


def event_of(topic: str, writer: int, number: int) -> Event:
    """The event with this number. A payment is for the order with the same writer and number."""
    chance = crc32(f"{writer} {number} {'click' if topic == 'clicks' else 'order'}".encode())
    country, customer = COUNTRIES[chance % len(COUNTRIES)], f"c{chance // 8 % CUSTOMERS}"
    cents = 99 + chance // 40_000 % 50_000
    content: dict[str, object] = {"id": f"{topic}-{writer}-{number}", "country": country}
    if topic == "orders":
        content |= {"customer": customer, "items": 1 + chance % 5, "amount": cents / 100}
        return Event(topic, writer, number, content, country, cents, customer, (("shop", f"till-{writer}"),))
    if topic == "payments":
        # One in twenty is refused, without money.
        is_refused = chance % 20 == 7
        content |= {"order": f"orders-{writer}-{number}", "status": "refused" if is_refused else "captured"}
        content |= {"amount": 0.0 if is_refused else cents / 100}
        return Event(topic, writer, number, content, country, 0 if is_refused else cents, customer, ())
    content |= {"page": PAGES[chance % len(PAGES)]}
    headers = (("campaign", f"autumn-{chance % 3}"),) if number % 5 == 0 else ()
    return Event(topic, writer, number, content, country, 0, None, headers)


def invoice_of(event: Event) -> Invoice | None:
    """The invoice of an order that wants one."""
    chance = crc32(event.event_id.encode())
    if event.topic != "orders" or chance % INVOICED_ONE_OF:
        return None
    return Invoice(event.event_id, event.cents, by_fax=chance // INVOICED_ONE_OF % FAXED_ONE_OF == 0)


def groups_of(writer: int, count: int) -> Iterator[list[Batch]]:
    """The groups of a writer in the order of sending: the first batch first, then the others in reverse order."""
    used = dict.fromkeys(TOPICS, 0)
    for index in range(count):
        topic = CYCLE[(index + writer) % len(CYCLE)]
        first = used[topic] + 1
        used[topic] += GROUP_BATCHES
        yield [Batch(topic, writer, seq) for seq in (first, *range(first + GROUP_BATCHES - 1, first, -1))]


def all_events(writers: int, groups: int) -> Iterator[Event]:
    """All events of a run."""
    for writer in range(writers):
        for group in groups_of(writer, groups):
            for batch in group:
                yield from batch.events()


def all_invoices(writers: int, groups: int) -> list[Invoice]:
    """The invoices of all orders of a run."""
    return [
        invoice
        for writer in range(writers)
        for group in groups_of(writer, groups)
        if group[0].topic == "orders"
        for batch in group
        for event in batch.events()
        if (invoice := invoice_of(event)) is not None
    ]

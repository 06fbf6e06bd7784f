"""Whether what a run has left behind is what its events imply, record by record, in plain Python.

Every function gets what there is and what was sent, and gives back complaints: none if all is well. What was sent is
made again by `shop_events`, so nothing that went through a server or through Spark is taken for the truth, but for
which seq a record has.

This module must not know how anything is read or written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from itertools import groupby
from typing import NamedTuple

from shop_events import Batch, Event
from shop_results import LedgerRow, Stored, TopicContent

#: So many complaints of one kind are told.
COMPLAINTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Sums:
    """What a country has bought: counts, and money in cents."""

    orders: int = 0
    ordered: int = 0
    payments: int = 0
    paid: int = 0
    clicks: int = 0

    def with_event(self, event: Event) -> Sums:
        """The sums with one event more."""
        if event.topic == "orders":
            return replace(self, orders=self.orders + 1, ordered=self.ordered + event.cents)
        if event.topic == "payments":
            return replace(self, payments=self.payments + 1, paid=self.paid + event.cents)
        return replace(self, clicks=self.clicks + 1)


class Ack(NamedTuple):
    """A batch that was acked, and the seq of its first record; 0 where the answer was lost with a server."""

    batch: Batch
    first_seq: int


def few(complaints: Iterable[str]) -> list[str]:
    """The first complaints, and how many more there are."""
    found = list(complaints)
    more = [f"and {len(found) - COMPLAINTS_MAX:,} more of that kind"] if len(found) > COMPLAINTS_MAX else []
    return found[:COMPLAINTS_MAX] + more


def check_topic(topic: str, content: TopicContent, sent: Mapping[bytes, Event], acks: Sequence[Ack]) -> list[str]:
    """Every event of a topic is there once, as it was sent, where its ack said, and nothing else is."""
    counts = Counter(record.value for record in content.records)
    lost = [event.event_id for value, event in sent.items() if value not in counts]
    twice = [sent[value].event_id for value, count in counts.items() if count > 1 and value in sent]
    complaints = few(f"{topic}: event {name} was acked and is not there" for name in lost)
    complaints += few(f"{topic}: event {name} is there more than once" for name in twice)
    complaints += few(f"{topic}: nobody sent {value!r}" for value in counts if value not in sent)
    complaints += few(_differing(topic, content.records, sent))
    complaints += few(_misplaced(topic, content.records, sent, acks))
    complaints += few(_holes(topic, content))
    if content.skips:
        complaints.append(f"{topic}: {content.skips} SKIPs, though every batch was sent")
    return complaints


def check_client_order(topic: str, content: TopicContent, sent: Mapping[bytes, Event]) -> list[str]:
    """The events of each writer stand in the order of their numbers."""
    return few(
        f"{topic}: event {after.event_id} stands behind {before.event_id}"
        for before, after in out_of_order(content, sent)
    )


def out_of_order(content: TopicContent, sent: Mapping[bytes, Event]) -> list[tuple[Event, Event]]:
    """Neighbours of one writer of which the second has the lower number."""
    last: dict[int, Event] = {}
    found: list[tuple[Event, Event]] = []
    for event in (sent[record.value] for record in content.records if record.value in sent):
        before = last.get(event.writer)
        if before is not None and event.number <= before.number:
            found.append((before, event))
        last[event.writer] = event
    return found


def check_repetitions(acks: Iterable[Ack], unrecognised: Iterable[Ack]) -> list[str]:
    """No repetition was given a place of its own.

    One that the client had to send more than once by itself, as where a server ends before it answers, is not told to
    be a repetition: what it may be told is its old seq, or none.
    """
    known = dict(acks)
    return few(
        f"{batch.topic}: batch {batch.client_seq} of writer {batch.writer} had seq {known.get(batch)}, was sent again, "
        f"and got {first_seq}"
        for batch, first_seq in unrecognised
        if first_seq not in (0, known.get(batch))
    )


def expected_ledger(contents: Mapping[str, TopicContent], sent: Mapping[bytes, Event]) -> list[LedgerRow]:
    """The row that each stored event implies."""
    return [
        LedgerRow(topic, record.seq, event.event_id, event.country, Decimal(event.cents) / 100)
        for topic, content in contents.items()
        for record in content.records
        if (event := sent.get(record.value)) is not None
    ]


def check_rows(name: str, expected: Iterable[LedgerRow], rows: Iterable[LedgerRow]) -> list[str]:
    """Rows are those expected, each as often."""
    wanted, found = Counter(expected), Counter(rows)
    missing, extra = wanted - found, found - wanted
    complaints = few(f"{name}: {_shown(row)} is missing" for row in missing)
    return complaints + few(f"{name}: {_shown(row)} is there {found[row]} times, not {wanted[row]}" for row in extra)


def revenue_of(events: Iterable[Event]) -> dict[str, Sums]:
    """The sums of events by country."""
    sums: dict[str, Sums] = {}
    for event in events:
        sums[event.country] = sums.get(event.country, Sums()).with_event(event)
    return sums


def check_snapshots(
    snapshots: Sequence[Mapping[str, Sums]],
    ends: Sequence[Mapping[str, int]],
    contents: Mapping[str, TopicContent],
    sent: Mapping[bytes, Event],
) -> list[str]:
    """The revenue that each micro-batch has written is that of all events up to where the micro-batch ended."""
    if len(snapshots) != len(ends):
        return [f"revenue: {len(snapshots)} micro-batches are in the topic, and Spark has done {len(ends)}"]
    complaints: list[str] = []
    sums: dict[str, Sums] = {}
    places = dict.fromkeys(contents, 0)
    for number, (snapshot, end) in enumerate(zip(snapshots, ends, strict=True)):
        for topic, content in contents.items():
            while places[topic] < len(content.records) and content.records[places[topic]].seq < end.get(topic, 0):
                event = sent[content.records[places[topic]].value]
                sums[event.country] = sums.get(event.country, Sums()).with_event(event)
                places[topic] += 1
        complaints += check_sums(f"revenue, micro-batch {number}", sums, snapshot)
    return few(complaints)


def check_sums(name: str, expected: Mapping[str, Sums], found: Mapping[str, Sums]) -> list[str]:
    """Sums are the same, to the cent."""
    countries = sorted(expected.keys() | found.keys())
    return [
        f"{name}: {country} has {found.get(country)}, and the events say {expected.get(country)}"
        for country in countries
        if expected.get(country) != found.get(country)
    ]


def snapshots_of(content: TopicContent) -> list[dict[str, Sums]]:
    """What each micro-batch has written into topic `revenue`: a transaction has one position."""
    by_position = groupby(content.records, key=lambda record: record.position)
    return [dict(_country_sums(record) for record in records) for _, records in by_position]


def total_of(sums: Mapping[str, Sums]) -> Sums:
    """All countries together."""
    return Sums(*map(sum, zip(*map(astuple, sums.values()), strict=True))) if sums else Sums()


def _country_sums(record: Stored) -> tuple[str, Sums]:
    row = json.loads(record.value, parse_float=Decimal)
    money = {name: int(Decimal(row[name]) * 100) for name in ("ordered", "paid")}
    return row["country"], Sums(row["orders"], money["ordered"], row["payments"], money["paid"], row["clicks"])


def _differing(topic: str, records: Iterable[Stored], sent: Mapping[bytes, Event]) -> Iterable[str]:
    for record in records:
        event = sent.get(record.value)
        if event is None:
            continue
        key = None if event.key is None else event.key.encode()
        headers = tuple((name.encode(), value.encode()) for name, value in event.headers)
        if (record.key, record.headers) != (key, headers):
            yield f"{topic}: event {event.event_id} has key {record.key!r} and headers {record.headers}"


def _misplaced(
    topic: str, records: Iterable[Stored], sent: Mapping[bytes, Event], acks: Iterable[Ack]
) -> Iterable[str]:
    """Events that are not at the seqs that their acks have told."""
    at = {record.seq: sent.get(record.value) for record in records}
    for batch, first_seq in acks:
        if not first_seq or batch.topic != topic:
            continue
        for index, number in enumerate(batch.numbers):
            event = at.get(first_seq + index)
            if event is None or (event.writer, event.number) != (batch.writer, number):
                who = f"event {number} of writer {batch.writer}"
                yield f"{topic}: {who} was acked with seq {first_seq + index}, where it is not"


def _holes(topic: str, content: TopicContent) -> Iterable[str]:
    """Seqs that neither a record nor a gap has, or more than one: from 1 on, each belongs to one of them."""
    spans = sorted([(record.seq, record.seq) for record in content.records] + content.gaps)
    expected = 1
    for first, last in spans:
        if first != expected:
            yield f"{topic}: seq {first} follows seq {expected - 1}, and no gap says why"
        expected = last + 1


def _shown(row: LedgerRow) -> str:
    return f"{row.event_id} ({row.topic} {row.offset}, {row.country}, {row.amount})"

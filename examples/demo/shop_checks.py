"""Checks the results of a run against its events, record by record, in plain Python.

Each function takes what was found and what was sent, and returns complaints: none if all is well. `shop_events`
generates again what was sent, so the checks trust nothing that went through a server or through Spark, except the seqs
of records.

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

from shop_events import FAX_ATTEMPTS, FAX_ERROR, Batch, Event, Invoice
from shop_results import DeadLetter, InvoiceRow, LedgerRow, Stored, TopicContent

#: The most complaints of one kind that are reported.
COMPLAINTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a country: counts, and money in cents."""

    orders: int = 0
    ordered: int = 0
    payments: int = 0
    paid: int = 0
    clicks: int = 0

    def with_event(self, event: Event) -> Sums:
        """The sums with one more event."""
        if event.topic == "orders":
            return replace(self, orders=self.orders + 1, ordered=self.ordered + event.cents)
        if event.topic == "payments":
            return replace(self, payments=self.payments + 1, paid=self.paid + event.cents)
        return replace(self, clicks=self.clicks + 1)


class Ack(NamedTuple):
    """An acked batch, and the seq of its first record; 0 if the ack was lost with a server."""

    batch: Batch
    first_seq: int


def few(complaints: Iterable[str]) -> list[str]:
    """The first complaints, and the number of further ones."""
    found = list(complaints)
    more = [f"and {len(found) - COMPLAINTS_MAX:,} more of that kind"] if len(found) > COMPLAINTS_MAX else []
    return found[:COMPLAINTS_MAX] + more


def check_topic(topic: str, content: TopicContent, sent: Mapping[bytes, Event], acks: Sequence[Ack]) -> list[str]:
    """Check that every event of a topic is stored once, as it was sent, at the seq of its ack, and nothing else."""
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
    """Check that the events of each writer are in the order of their numbers."""
    return few(
        f"{topic}: event {after.event_id} stands behind {before.event_id}"
        for before, after in out_of_order(content, sent)
    )


def out_of_order(content: TopicContent, sent: Mapping[bytes, Event]) -> list[tuple[Event, Event]]:
    """Consecutive events of a writer whose second one has a lower number."""
    last: dict[int, Event] = {}
    found: list[tuple[Event, Event]] = []
    for event in (sent[record.value] for record in content.records if record.value in sent):
        before = last.get(event.writer)
        if before is not None and event.number <= before.number:
            found.append((before, event))
        last[event.writer] = event
    return found


def check_repetitions(acks: Iterable[Ack], unrecognised: Iterable[Ack]) -> list[str]:
    """Check that no repetition was stored again.

    If the client itself had to send a repetition more than once, for example after a crash of the server, its delivery
    is not marked as a duplicate: it has the old seq, or none.
    """
    known = dict(acks)
    return few(
        f"{batch.topic}: batch {batch.client_seq} of writer {batch.writer} had seq {known.get(batch)}, was sent again, "
        f"and got {first_seq}"
        for batch, first_seq in unrecognised
        if first_seq not in (0, known.get(batch))
    )


def expected_ledger(contents: Mapping[str, TopicContent], sent: Mapping[bytes, Event]) -> list[LedgerRow]:
    """The expected row of each stored event."""
    return [
        LedgerRow(topic, record.seq, event.event_id, event.country, Decimal(event.cents) / 100)
        for topic, content in contents.items()
        for record in content.records
        if (event := sent.get(record.value)) is not None
    ]


def check_rows(name: str, expected: Iterable[LedgerRow], rows: Iterable[LedgerRow]) -> list[str]:
    """Check that the rows are the expected ones, each as often."""
    expected_counts, counts = Counter(expected), Counter(rows)
    missing, extra = expected_counts - counts, counts - expected_counts
    complaints = few(f"{name}: {_text(row)} is missing" for row in missing)
    return complaints + few(
        f"{name}: {_text(row)} is there {counts[row]} times, not {expected_counts[row]}" for row in extra
    )


def check_jobs(invoices: Iterable[Invoice], jobs: Mapping[str, int], left: int) -> list[str]:
    """Check that each invoice was sent as a job of its own, of which none is left; `jobs` are the seqs by order."""
    unsent = [invoice.order for invoice in invoices if invoice.order not in jobs]
    shared = [seq for seq, count in Counter(jobs.values()).items() if count > 1]
    complaints = few(f"mails: no job was sent for {order}" for order in unsent)
    complaints += few(f"mails: several jobs were acked with seq {seq}" for seq in shared)
    return complaints + ([f"mails: {left} jobs are left in the queue"] if left else [])


def check_invoices(invoices: Iterable[Invoice], jobs: Mapping[str, int], rows: Iterable[InvoiceRow]) -> list[str]:
    """Check that each mailed invoice has exactly one row, that of its job, and that no fax has one."""
    expected = Counter((each.order, each.cents, jobs.get(each.order)) for each in invoices if not each.by_fax)
    counts = Counter((row.order, row.cents, row.job) for row in rows)
    complaints = few(
        f"invoices: {order} ({money(cents)}, job {job}) is missing" for order, cents, job in expected - counts
    )
    return complaints + few(
        f"invoices: {order} ({money(cents)}, job {job}) is there {counts[order, cents, job]} times, "
        f"not {expected[order, cents, job]}"
        for order, cents, job in counts - expected
    )


def check_dead_letters(
    invoices: Iterable[Invoice], jobs: Mapping[str, int], letters: Sequence[DeadLetter]
) -> list[str]:
    """Check that each fax is one dead letter, that of its job, after all its attempts, and that nothing else is one."""
    expected = Counter(("fax_invoice", each.order, jobs.get(each.order)) for each in invoices if each.by_fax)
    counts = Counter((letter.task, letter.order, letter.job) for letter in letters)
    complaints = few(f"mails.dead: {task} of {order}, job {job}, is missing" for task, order, job in expected - counts)
    complaints += few(
        f"mails.dead: {task} of {order}, job {job}, is there {counts[task, order, job]} times, "
        f"not {expected[task, order, job]}"
        for task, order, job in counts - expected
    )
    return complaints + few(
        f"mails.dead: {letter.order} was given up after {letter.deliveries} deliveries: {letter.reason}"
        for letter in letters
        if not _is_due(letter)
    )


def money(cents: int) -> str:
    """Format cents as euros."""
    return f"€ {cents // 100:,}.{cents % 100:02d}"


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
    """Check that each micro-batch has written the revenue of all events up to its end."""
    if len(snapshots) != len(ends):
        return [f"revenue: {len(snapshots)} micro-batches are in the topic, but Spark has completed {len(ends)}"]
    complaints: list[str] = []
    sums: dict[str, Sums] = {}
    next_index = dict.fromkeys(contents, 0)
    for number, (snapshot, end) in enumerate(zip(snapshots, ends, strict=True)):
        for topic, content in contents.items():
            while next_index[topic] < len(content.records) and content.records[next_index[topic]].seq < end.get(
                topic, 0
            ):
                event = sent[content.records[next_index[topic]].value]
                sums[event.country] = sums.get(event.country, Sums()).with_event(event)
                next_index[topic] += 1
        complaints += check_sums(f"revenue, micro-batch {number}", sums, snapshot)
    return few(complaints)


def check_sums(name: str, expected: Mapping[str, Sums], found: Mapping[str, Sums]) -> list[str]:
    """Check that the sums are the same, to the cent."""
    countries = sorted(expected.keys() | found.keys())
    return [
        f"{name}: {country} has {found.get(country)}, but the events sum up to {expected.get(country)}"
        for country in countries
        if expected.get(country) != found.get(country)
    ]


def snapshots_of(content: TopicContent) -> list[dict[str, Sums]]:
    """What each micro-batch has written to topic `revenue`; the records of a transaction share one position."""
    by_position = groupby(content.records, key=lambda record: record.position)
    return [dict(_country_sums(record) for record in records) for _, records in by_position]


def total_of(sums: Mapping[str, Sums]) -> Sums:
    """The sums over all countries."""
    return Sums(*map(sum, zip(*map(astuple, sums.values()), strict=True))) if sums else Sums()


def _country_sums(record: Stored) -> tuple[str, Sums]:
    row = json.loads(record.value, parse_float=Decimal)
    money = {name: int(Decimal(row[name]) * 100) for name in ("ordered", "paid")}
    return row["country"], Sums(row["orders"], money["ordered"], row["payments"], money["paid"], row["clicks"])


def _is_due(letter: DeadLetter) -> bool:
    """True if a fax was given up for its error. Its last attempt may have been lost with a killed worker."""
    if letter.deliveries > FAX_ATTEMPTS:
        return "workers were killed" in letter.reason
    return letter.deliveries == FAX_ATTEMPTS and letter.reason == f"ConnectionError: {FAX_ERROR}"


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
    """Complaints about events that are not at the seqs of their acks."""
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
    """Complaints about seqs that are not covered by exactly one record or gap, from 1 on."""
    spans = sorted([(record.seq, record.seq) for record in content.records] + content.gaps)
    expected = 1
    for first, last in spans:
        if first != expected:
            yield f"{topic}: seq {first} follows seq {expected - 1}, and no gap says why"
        expected = last + 1


def _text(row: LedgerRow) -> str:
    return f"{row.event_id} ({row.topic} {row.offset}, {row.country}, {row.amount})"

"""The checks of the demo find planted errors in the results of a correct run."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shop_checks as checks
from shop_checks import Ack, Sums
from shop_events import (
    BATCH_EVENTS,
    FAX_ATTEMPTS,
    FAX_ERROR,
    GROUP_EVENTS,
    TOPICS,
    Batch,
    Event,
    all_events,
    all_invoices,
    event_of,
    groups_of,
    invoice_of,
)
from shop_results import (
    DeadLetter,
    InvoiceRow,
    LedgerRow,
    Stored,
    TopicContent,
    batch_ends,
    committed_ends,
    dead_letters,
    forget_last_commit,
    invoice_rows,
    ledger_rows,
    parquet_rows,
)

from seawall.wire.jobs.dead_letters import marked_meta

WRITERS, GROUPS = 2, 5
EVENTS = list(all_events(WRITERS, GROUPS))
SENT = {event.value: event for event in EVENTS}


def stored(event: Event, seq: int) -> Stored:
    key = None if event.key is None else event.key.encode()
    return Stored(seq, seq, event.value, key, tuple((name.encode(), value.encode()) for name, value in event.headers))


def contents() -> dict[str, TopicContent]:
    """Correct topics: one writer after the other, with a gap before the second one."""
    found: dict[str, TopicContent] = {}
    for topic in TOPICS:
        events = sorted(
            (event for event in EVENTS if event.topic == topic), key=lambda each: (each.writer, each.number)
        )
        first = [stored(event, seq) for seq, event in enumerate((e for e in events if e.writer == 0), 1)]
        gap = (len(first) + 1, len(first) + 1000)
        second = [stored(event, seq) for seq, event in enumerate((e for e in events if e.writer == 1), gap[1] + 1)]
        found[topic] = TopicContent(first + second, [gap])
    return found


def complaints_of(content: TopicContent, acks: list[Ack] | None = None) -> list[str]:
    of_topic = {value: event for value, event in SENT.items() if event.topic == "orders"}
    return checks.check_topic("orders", content, of_topic, acks or []) + checks.check_client_order(
        "orders", content, SENT
    )


def without(content: TopicContent, index: int) -> TopicContent:
    return content._replace(records=content.records[:index] + content.records[index + 1 :])


def twice(content: TopicContent, index: int) -> TopicContent:
    last = content.records[-1].seq
    return content._replace(records=[*content.records, content.records[index]._replace(seq=last + 1)])


def exchanged(content: TopicContent, index: int) -> TopicContent:
    records = list(content.records)
    first, second = records[index], records[index + 1]
    records[index], records[index + 1] = second._replace(seq=first.seq), first._replace(seq=second.seq)
    return content._replace(records=records)


def altered(content: TopicContent, index: int, **changes: object) -> TopicContent:
    records = list(content.records)
    records[index] = records[index]._replace(**changes)
    return content._replace(records=records)


def test_events_are_derived_from_their_numbers() -> None:
    assert len(EVENTS) == len(SENT) == WRITERS * GROUPS * GROUP_EVENTS
    assert {event.topic for event in EVENTS} == set(TOPICS)
    assert event_of("orders", 1, 7) == event_of("orders", 1, 7)
    assert event_of("payments", 1, 3).content["order"] == event_of("orders", 1, 3).event_id
    assert {event.cents for event in EVENTS if event.content.get("status") == "refused"} == {0}
    for group in groups_of(0, GROUPS):
        numbers = [batch.client_seq for batch in group]
        assert numbers[0] == min(numbers)
        assert numbers != sorted(numbers)


def test_a_correct_run_has_no_complaints() -> None:
    for topic, content in contents().items():
        of_topic = {value: event for value, event in SENT.items() if event.topic == topic}
        acks = [Ack(Batch(topic, 0, 1), 1), Ack(Batch(topic, 0, 2), 1 + BATCH_EVENTS), Ack(Batch(topic, 1, 1), 0)]
        assert checks.check_topic(topic, content, of_topic, acks) == []
        assert checks.check_client_order(topic, content, SENT) == []


@pytest.mark.parametrize(
    ("plant", "messages"),
    [
        (lambda content: without(content, 3), ["event orders-0-3 was acked and is not there", "seq 5 follows seq 3"]),
        (lambda content: twice(content, 3), ["orders-0-3 is there more than once", "orders-0-3 stands behind"]),
        (lambda content: exchanged(content, 3), ["event orders-0-3 stands behind orders-0-4"]),
        (lambda content: altered(content, 3, key=b"other"), ["event orders-0-3 has key b'other'"]),
        (lambda content: altered(content, 3, value=b"{}"), ["orders-0-3 was acked and is not", "nobody sent b'{}'"]),
        (lambda content: altered(content, 3, seq=3), ["seq 3 follows seq 3", "seq 5 follows seq 3"]),
        (lambda content: content._replace(gaps=[]), ["and no gap says why"]),
        (lambda content: content._replace(skips=2), ["2 SKIPs, though every batch was sent"]),
    ],
)
def test_errors_planted_in_a_topic_are_found(
    plant: Callable[[TopicContent], TopicContent], messages: list[str]
) -> None:
    found = complaints_of(plant(contents()["orders"]))
    assert [text for text in messages if not any(text in each for each in found)] == []


def test_a_record_at_another_seq_than_its_ack() -> None:
    found = complaints_of(contents()["orders"], [Ack(Batch("orders", 0, 1), 2)])
    assert found[0] == "orders: event 0 of writer 0 was acked with seq 2, where it is not"
    assert found[-1] == f"and {BATCH_EVENTS - checks.COMPLAINTS_MAX} more of that kind"


def test_a_repetition_with_another_seq() -> None:
    batch, other = Batch("orders", 0, 1), Batch("orders", 0, 2)
    acks = [Ack(batch, 5), Ack(other, 30)]
    assert checks.check_repetitions(acks, [Ack(batch, 0), Ack(other, 30)]) == []
    [message] = checks.check_repetitions(acks, [Ack(batch, 55)])
    assert message == "orders: batch 1 of writer 0 had seq 5, was sent again, and got 55"


def test_lost_and_duplicate_rows() -> None:
    expected = checks.expected_ledger(contents(), SENT)
    assert len(expected) == len(EVENTS)
    assert checks.check_rows("ledger", expected, reversed(expected)) == []
    [lost] = checks.check_rows("ledger", expected, expected[1:])
    assert lost == f"ledger: {expected[0].event_id} (orders 1, {expected[0].country}, {expected[0].amount}) is missing"
    [doubled] = checks.check_rows("ledger", expected, [*expected, expected[0]])
    assert doubled.endswith("is there 2 times, not 1")
    cent = expected[0]._replace(amount=expected[0].amount + Decimal("0.01"))
    assert len(checks.check_rows("ledger", expected, [cent, *expected[1:]])) == 2


def snapshot_records(sums: dict[str, Sums], position: int) -> list[Stored]:
    rows = [
        {"country": country, "orders": each.orders, "ordered": each.ordered / 100, "payments": each.payments}
        | {"paid": each.paid / 100, "clicks": each.clicks}
        for country, each in sums.items()
    ]
    return [Stored(0, position, json.dumps(row).encode()) for row in rows]


def test_sums_of_every_micro_batch() -> None:
    found, half = contents(), {"orders": 60, "payments": 1, "clicks": 200}
    ends = [half, {topic: content.records[-1].seq + 1 for topic, content in found.items()}]
    below = [
        SENT[record.value] for topic, content in found.items() for record in content.records if record.seq < half[topic]
    ]
    first, last = checks.revenue_of(below), checks.revenue_of(EVENTS)
    snapshots = checks.snapshots_of(TopicContent(snapshot_records(first, 7) + snapshot_records(last, 9), []))
    assert snapshots == [first, last]
    assert checks.check_snapshots(snapshots, ends, found, SENT) == []
    assert "Spark has completed 2" in checks.check_snapshots(snapshots[1:], ends, found, SENT)[0]
    country = next(iter(first))
    wrong = first | {country: Sums(first[country].orders, first[country].ordered + 1)}
    [message] = checks.check_snapshots([wrong, last], ends, found, SENT)
    assert message.startswith(f"revenue, micro-batch 0: {country} has")
    assert checks.total_of(last).ordered == sum(event.cents for event in EVENTS if event.topic == "orders")
    assert checks.total_of({}) == Sums()


# --- the queue -------------------------------------------------------------------------------------------------------

INVOICES = all_invoices(WRITERS, 400)
MAILED = [invoice for invoice in INVOICES if not invoice.by_fax]
FAXED = [invoice for invoice in INVOICES if invoice.by_fax]
JOBS = {invoice.order: seq for seq, invoice in enumerate(INVOICES, 7)}


def invoiced() -> list[InvoiceRow]:
    """The correct rows; the job of the second one was delivered three times."""
    return [InvoiceRow(each.order, each.cents, JOBS[each.order], 3 if each == MAILED[1] else 1) for each in MAILED]


def given_up() -> list[DeadLetter]:
    """The correct dead letters; the last attempt of the second one was lost with its worker."""
    found = [
        DeadLetter("fax_invoice", each.order, JOBS[each.order], FAX_ATTEMPTS, f"ConnectionError: {FAX_ERROR}")
        for each in FAXED
    ]
    killed = "WrongStateError: delivered 4 times with 2 retries: workers were killed, or lost their lease"
    found[1] = found[1]._replace(deliveries=FAX_ATTEMPTS + 1, reason=killed)
    return found


def test_invoices_are_those_of_orders() -> None:
    events = [event for event in all_events(WRITERS, 400) if invoice_of(event) is not None]
    assert {invoice_of(event) for event in events} == set(INVOICES)
    assert {event.topic for event in events} == {"orders"}
    assert [event.cents for event in events] == [each.cents for each in map(invoice_of, events) if each is not None]
    assert len(FAXED) >= 3
    assert len(MAILED) > len(FAXED)


def test_a_correct_queue_has_no_complaints() -> None:
    assert checks.check_jobs(INVOICES, JOBS, 0) == []
    assert checks.check_invoices(INVOICES, JOBS, reversed(invoiced())) == []
    assert checks.check_dead_letters(INVOICES, JOBS, given_up()) == []


def test_jobs_that_were_not_sent_are_shared_or_left() -> None:
    order, other = INVOICES[0].order, INVOICES[1].order
    unsent = {name: seq for name, seq in JOBS.items() if name != order}
    assert checks.check_jobs(INVOICES, unsent, 0) == [f"mails: no job was sent for {order}"]
    shared = JOBS | {order: JOBS[other]}
    assert checks.check_jobs(INVOICES, shared, 0) == [f"mails: several jobs were acked with seq {JOBS[other]}"]
    assert checks.check_jobs(INVOICES, JOBS, 2) == ["mails: 2 jobs are left in the queue"]


def test_lost_duplicate_and_wrong_invoices() -> None:
    rows, first = invoiced(), MAILED[0]
    shown = f"invoices: {first.order} ({checks.money(first.cents)}, job {JOBS[first.order]})"
    assert checks.check_invoices(INVOICES, JOBS, rows[1:]) == [f"{shown} is missing"]
    again = rows[0]._replace(delivery=2)
    assert checks.check_invoices(INVOICES, JOBS, [*rows, again]) == [f"{shown} is there 2 times, not 1"]
    for wrong in (rows[0]._replace(cents=first.cents + 1), rows[0]._replace(job=JOBS[first.order] + 1)):
        assert len(checks.check_invoices(INVOICES, JOBS, [wrong, *rows[1:]])) == 2
    fax = InvoiceRow(FAXED[0].order, FAXED[0].cents, JOBS[FAXED[0].order], 1)
    [attempt] = checks.check_invoices(INVOICES, JOBS, [*rows, fax])
    assert attempt.endswith("is there 1 times, not 0")


def test_lost_duplicate_and_wrong_dead_letters() -> None:
    letters, first = given_up(), FAXED[0]
    shown = f"mails.dead: fax_invoice of {first.order}, job {JOBS[first.order]},"
    assert checks.check_dead_letters(INVOICES, JOBS, letters[1:]) == [f"{shown} is missing"]
    assert checks.check_dead_letters(INVOICES, JOBS, [*letters, letters[0]]) == [f"{shown} is there 2 times, not 1"]
    mail = DeadLetter("mail_invoice", MAILED[0].order, JOBS[MAILED[0].order], 3, f"ConnectionError: {FAX_ERROR}")
    [unexpected] = checks.check_dead_letters(INVOICES, JOBS, [*letters, mail])
    assert unexpected.startswith("mails.dead: mail_invoice of")
    for changes in ({"deliveries": FAX_ATTEMPTS - 1}, {"deliveries": FAX_ATTEMPTS + 1}, {"reason": "other"}):
        wrong = letters[0]._replace(**changes)
        [message] = checks.check_dead_letters(INVOICES, JOBS, [wrong, *letters[1:]])
        assert message == f"mails.dead: {first.order} was given up after {wrong.deliveries} deliveries: {wrong.reason}"


def test_invoices_and_dead_letters_are_read() -> None:
    value = b'{"order":"orders-0-3","cents":125,"job":7,"delivery":2}'
    assert invoice_rows(TopicContent([Stored(1, 1, value)], [])) == [InvoiceRow("orders-0-3", 125, 7, 2)]
    job = b'{"task":"fax_invoice","args":["orders-0-3",125],"kwargs":{}}'
    letter = Stored(1, 1, job, meta=marked_meta(None, "mails", 7, 3, "a reason"))
    without_meta = Stored(2, 2, job)
    assert dead_letters(TopicContent([letter, without_meta], [])) == [
        DeadLetter("fax_invoice", "orders-0-3", 7, 3, "a reason"),
        DeadLetter("fax_invoice", "orders-0-3", 0, 0, ""),
    ]


# --- files -----------------------------------------------------------------------------------------------------------


def test_checkpoints_are_read_and_shortened(tmp_path: Path) -> None:
    assert committed_ends(tmp_path) == {}
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    assert not forget_last_commit(tmp_path)
    for number in range(12):
        offset = json.dumps({"orders": {"0": number + 5, "epoch": 1}})
        (tmp_path / "offsets" / f"{number}").write_text(f"v1\n{{}}\n{offset}\n")
        (tmp_path / "commits" / f"{number}").write_text("v1\n{}\n")
    (tmp_path / "commits" / ".11.crc").touch()
    assert committed_ends(tmp_path) == {"orders": 16}
    assert list(batch_ends(tmp_path)) == list(range(12))
    assert forget_last_commit(tmp_path)
    assert committed_ends(tmp_path) == batch_ends(tmp_path)[10] == {"orders": 15}
    assert not (tmp_path / "commits" / ".11.crc").exists()
    # Batch 11 will be repeated: earlier ones stay committed.
    assert not forget_last_commit(tmp_path)


def test_uncommitted_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    amounts = [Decimal("1.25"), Decimal("0.00"), Decimal("3.00")]
    for number, amount in enumerate(amounts):
        columns = {"topic": ["orders"], "offset": [number], "id": ["x"], "country": ["DE"], "amount": [amount]}
        pq.write_table(pa.table(columns), tmp_path / f"part {number}.parquet")

    def listed(*numbers: int) -> str:
        entries = ({"path": f"{tmp_path.as_uri()}/part%20{number}.parquet", "action": "add"} for number in numbers)
        return "\n".join(["v1", *map(json.dumps, entries)])

    for name, text in (("8", listed(2)), ("9.compact", listed(0)), ("10", listed(1))):
        (tmp_path / "_spark_metadata" / name).write_text(text)
    rows, files = parquet_rows(tmp_path)
    assert files == 2
    assert rows == [LedgerRow("orders", number, "x", "DE", amounts[number]) for number in (0, 1)]
    value = b'{"topic":"orders","offset":0,"id":"x","country":"DE","amount":1.25}'
    assert ledger_rows(TopicContent([Stored(1, 1, value)], [])) == rows[:1]

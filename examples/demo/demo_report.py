"""Checks the results of a run: reads topics, checkpoints and files, and describes what was proven."""

from __future__ import annotations

from demo_run import Run
from demo_workers import PROCESSES, left
from shop_checks import (
    check_client_order,
    check_dead_letters,
    check_invoices,
    check_jobs,
    check_repetitions,
    check_rows,
    check_snapshots,
    check_sums,
    check_topic,
    expected_ledger,
    money,
    out_of_order,
    revenue_of,
    snapshots_of,
    total_of,
)
from shop_events import FAX_ATTEMPTS, GROUP_BATCHES, TOPICS, all_events, all_invoices
from shop_pipeline import QUERIES
from shop_results import batch_ends, dead_letters, invoice_rows, ledger_rows, parquet_rows, read_topic
from shop_tasks import INVOICES, QUEUE
from shop_writer import CONNECTIONS

import seawall


def examine(run: Run) -> tuple[list[str], list[str]]:
    """Check a run; returns the complaints, and, if there are none, what was proven."""
    history = run.history
    events = list(all_events(history.writers, history.groups))
    sent = {event.value: event for event in events}
    with seawall.connect(run.server.url) as log:
        contents = {topic: read_topic(log, topic) for topic in TOPICS}
        ledger, revenue = read_topic(log, "ledger"), read_topic(log, "revenue")
        mailed, letters = invoice_rows(read_topic(log, INVOICES)), dead_letters(read_topic(log, f"{QUEUE}.dead"))
        jobs_left = left(log.queue(QUEUE).counts())
    complaints: list[str] = []
    for topic, order in TOPICS.items():
        of_topic = {value: event for value, event in sent.items() if event.topic == topic}
        complaints += check_topic(topic, contents[topic], of_topic, history.acks)
        if order == 5:
            complaints += check_client_order(topic, contents[topic], sent)
    complaints += check_repetitions(history.acks, history.unrecognised)
    expected = expected_ledger(contents, sent)
    rows, files = parquet_rows(run.paths.directory / "files")
    complaints += check_rows("ledger", expected, ledger_rows(ledger))
    complaints += check_rows("Parquet", expected, rows)
    invoices, jobs = all_invoices(history.writers, history.groups), run.workers.sent
    complaints += check_jobs(invoices, jobs, jobs_left)
    complaints += check_invoices(invoices, jobs, mailed)
    complaints += check_dead_letters(invoices, jobs, letters)
    snapshots = snapshots_of(revenue)
    ends = list(batch_ends(run.paths.directory / "revenue").values())
    complaints += check_snapshots(snapshots, ends, contents, sent)
    sums = revenue_of(events)
    complaints += check_sums("revenue in the end", sums, snapshots[-1] if snapshots else {})
    if complaints:
        return complaints, []
    total = total_of(sums)
    lost = sum(last - first + 1 for content in contents.values() for first, last in content.gaps)
    moved = len(out_of_order(contents["clicks"], sent))
    batches, connections = len(history.acks), history.writers * len(TOPICS) * CONNECTIONS
    return [], [
        f"{len(events):,} events in {batches:,} batches, from {history.writers} writers over {connections} "
        "connections: each is stored exactly once, at the seq of its ack, with key and headers, "
        "and nothing else is stored",
        f"{history.repeated:,} batches sent again under their numbers: none was stored twice; "
        f"{history.recognised:,} were answered as duplicates, {len(history.unrecognised)} were the first to arrive",
        f"{batches // GROUP_BATCHES * (GROUP_BATCHES - 1):,} batches sent out of order: orders and payments (order 5) "
        f"keep the order of each writer; clicks (order 2) keep the order of arrival, {moved:,} batches before an "
        "earlier one",
        f"the server killed by SIGKILL with {history.server_killed_at:,} events acked, away for "
        f"{history.server_away_s:.1f} s: nothing is lost or duplicated; {lost:,} reserved seqs without a record are "
        "reported as gaps",
        f"Spark killed by SIGKILL with {history.spark_killed_at:,} events acked, {len(QUERIES) - history.rolled_back} "
        f"of its queries within a micro-batch, {history.rolled_back} made to repeat a finished one; "
        f"{history.restarts} queries failed and were restarted: no row is lost or duplicated",
        f"topic ledger: {len(expected):,} rows, exactly one for each event",
        f"topic revenue: {len(snapshots)} micro-batches, each the sums of all events up to its own end; the last one "
        f"says {money(total.ordered)} ordered and {money(total.paid)} paid, to the cent what plain Python computes",
        f"Parquet: the same {len(rows):,} rows in {files:,} files",
        f"{len(mailed):,} invoices, a job of a queue each, mailed by {PROCESSES} worker processes, of which "
        f"{len(run.workers.killed)} were killed by SIGKILL with {run.workers.cut_off} jobs in progress: each is there "
        f"exactly once, in one transaction with the ack of its job; {sum(row.delivery - 1 for row in mailed):,} "
        "redeliveries; the queue is empty",
        f"{len(letters):,} faxes that nobody answers: each is one dead letter, with its reason, after "
        f"{FAX_ATTEMPTS} attempts, of which nothing is stored",
        f"all of it in {history.seconds:.0f} s",
    ]

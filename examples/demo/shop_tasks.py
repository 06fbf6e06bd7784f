"""The tasks of the shop: invoices go out by mail or by fax, a job of a queue each.

    seawall worker shop_tasks:tasks --url URL

Each attempt publishes a row to topic `invoices`, which is stored in one transaction with the ack of the job, or not at
all. So a mailed invoice has one row, however many workers were killed on the way. Nobody answers the fax: the rows of
those attempts are dropped, and after the last one the job is a dead letter.

Workers write one JSON array per line to standard output, for the demo: the begin and the end of each delivery.
"""

from __future__ import annotations

import json
import os
import time

from shop_events import FAX_ATTEMPTS, FAX_ERROR, Invoice

from seawall.tasks import Backoff, Middleware, Outcome, RunningJob, TaskQueue, current_job

QUEUE, INVOICES = "mails", "invoices"
#: How long a killed worker keeps its jobs.
LEASE_S = 5.0
#: How long it takes to hand over a mail.
MAILING_S = 0.05
#: More than workers are killed.
MAIL_RETRIES = 100


class Reports(Middleware):
    """Reports each delivery to the demo."""

    def before_execute(self, job: RunningJob) -> None:
        """Report that an attempt begins."""
        report("begun", job.seq)

    def after_job(self, job: RunningJob, outcome: Outcome, _duration_s: float) -> None:
        """Report what became of a delivery."""
        report("ended", job.seq, outcome.value)


def report(kind: str, *fields: object) -> None:
    """Send a line to the demo, by one write: threads and processes share the pipe."""
    os.write(1, json.dumps([kind, os.getpid(), *fields]).encode() + b"\n")


tasks = TaskQueue("seawall://127.0.0.1:1992", topic=QUEUE, middleware=[Reports()], lease_s=LEASE_S)


@tasks.task(retries=MAIL_RETRIES)
def mail_invoice(order: str, cents: int) -> None:
    """Mail an invoice."""
    publish_row(order, cents)
    time.sleep(MAILING_S)


@tasks.task(retries=FAX_ATTEMPTS - 1, backoff=Backoff(first_s=0.5))
def fax_invoice(order: str, cents: int) -> None:
    """Try to fax an invoice."""
    publish_row(order, cents)
    raise ConnectionError(FAX_ERROR)


def publish_row(order: str, cents: int) -> None:
    """Publish the row of an invoice if its job is acked."""
    job = current_job()
    job.publish(INVOICES, {"order": order, "cents": cents, "job": job.seq, "delivery": job.deliveries})


def send(invoice: Invoice) -> int:
    """Push the job of an invoice, and return its seq."""
    task = fax_invoice if invoice.by_fax else mail_invoice
    return task.send(invoice.order, invoice.cents).seq

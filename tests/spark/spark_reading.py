"""Helpers of the tests of the Spark source: query options, rows without a session, waiting for sealed segments."""

from __future__ import annotations

import time

import pyarrow as pa

from seawall.client.remote_log import RemoteLog
from seawall.core.types import Seq
from seawall.spark.driver import Driver, range_of
from seawall.spark.options import ReadOptions, read_options
from seawall.spark.reading import read_range
from seawall.spark.schema import arrow_schema
from seawall.wire.lwp2.files import FilesReply, FilesRequest, parse_files_reply


def options_of(url: str, topic: str, **more: str) -> ReadOptions:
    """The options of a batch query."""
    return read_options({"url": url, "subscribe": topic, **more}, is_stream=False)


def rows_of(url: str, topic: str, first: int = 1, end: int | None = None, **more: str) -> pa.Table:
    """The rows that a task reads of a topic."""
    options = options_of(url, topic, **more)
    driver = Driver(options)
    try:
        found = driver.topics()[topic]
    finally:
        driver.close()
    wanted = range_of(found, first, found.next_seq if end is None else end)
    return pa.Table.from_batches(read_range(wanted, options), arrow_schema(options.columns))


def stored_files(log: RemoteLog, topic: str, first: int = 1, end: int = 1 << 40) -> FilesReply:
    """The server's list of the files of a topic."""
    request = FilesRequest(log.topic_named(topic).topic_id, Seq(first), Seq(end))
    return parse_files_reply(log.ask(request).payload)


def await_sealed(log: RemoteLog, topic: str, end: int) -> FilesReply:
    """Wait until everything below a seq is in sealed segments, which happens in the background."""
    deadline = time.monotonic() + 60
    while (reply := stored_files(log, topic)).end < end:
        assert time.monotonic() < deadline, f"sealed up to {reply.end}, not {end}"
        time.sleep(0.02)
    return reply

"""What tasks of the sink stage and what the driver makes of it, without a session: attempts, orders, repetitions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import seawall
from seawall.client.remote_log import RemoteLog
from seawall.core.transactions import STAGING_TOPIC, StagedPart
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.transactions import adoption
from seawall.errors import ConfigError, ConflictError, FencedError, InvalidInputError, NotFoundError, RetryableError
from seawall.limits import MIB
from seawall.spark import staging
from seawall.spark.given_options import ServerOptions
from seawall.spark.staging import abort_parts, commit_parts, require_topic, stage_rows, task_target
from seawall.spark.write_options import WRITTEN, WriteOptions, write_options, written_columns
from seawall.wire.format.arrow import KNOWN_COLUMNS

if TYPE_CHECKING:
    from real_server import RealServer


@pytest.fixture
def options(near_server: RealServer, near_log: RemoteLog) -> WriteOptions:
    near_log.create_topic("out")
    return WriteOptions(ServerOptions(near_server.url), "out")


def rows(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.string())})


def stage(options: WriteOptions, *batches: pa.RecordBatch, partition: int = 0) -> tuple[StagedPart, ...]:
    columns = [name for name in WRITTEN if batches and name in batches[0].schema.names]
    return stage_rows(batches, columns, options, partition)


def values(log: RemoteLog, topic: str = "out") -> list[bytes]:
    found: list[bytes] = log.read_arrow(topic)["value"].to_pylist()
    return found


def staged_count(server: RealServer) -> int:
    """Records that are staged and neither committed nor aborted."""

    async def count(log: ServedLog) -> int:
        return await log.ask(
            lambda store: sum(topic.live_records for topic in store.catalog if topic.name.startswith(STAGING_TOPIC))
        )

    return server.run(count)


def test_partitions_are_committed_in_their_order(
    options: WriteOptions, near_log: RemoteLog, near_server: RealServer
) -> None:
    second = stage(options, rows("c", "d"), partition=1)
    first = stage(options, rows("a"), rows("b"))
    empty = stage(options, partition=2)
    assert empty == ()
    assert stage(options, rows()) == ()
    assert values(near_log) == []
    assert [(part.topic, part.staged.record_count) for part in first] == [("out", 2)]
    commit_parts(options.server, ("q", 0), [*first, *second, *empty])
    assert values(near_log) == [b"a", b"b", b"c", b"d"]
    assert len(set(near_log.read_arrow("out")["seq"].to_pylist())) == 4
    assert staged_count(near_server) == 0
    commit_parts(options.server, ("q", 1), empty)
    last = near_log.transaction_state("q")
    assert last is not None
    assert last.epoch == 0


def test_large_attempts_get_staging_partitions_and_are_adopted(
    options: WriteOptions, near_log: RemoteLog, near_server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of 9 MiB each are adopted; a third is copied, because its commit includes a small one in the shared topic."""
    adopted: list[int] = []
    real = adoption.adopt_file

    def adopt_file(*arguments: Any) -> object:
        adopted.append(arguments[1])
        return real(*arguments)

    monkeypatch.setattr(adoption, "adopt_file", adopt_file)
    large = [[f"{task} {number}".ljust(MIB, ".") for number in range(9)] for task in range(2)]
    second = stage(options, *(rows(value) for value in large[1]), partition=1)
    first = stage(options, *(rows(value) for value in large[0]))
    assert len(first) == len(second) == 1, "each is one range"
    commit_parts(options.server, ("q", 0), [*first, *second])
    assert adopted == [1, 10]
    again = stage(options, *(rows(value) for value in large[0]))
    commit_parts(options.server, ("q", 1), [*again, *stage(options, rows("small"), partition=1)])
    assert len(adopted) == 2
    expected = [value.encode() for value in [*large[0], *large[1], *large[0], "small"]]
    assert values(near_log) == expected
    assert staged_count(near_server) == 0


def test_many_rows_at_once_are_staged_as_several_batches(
    options: WriteOptions, near_log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "STAGED_SIZE", 1_000)
    written = [f"{number:05}".encode() * 20 for number in range(101)]
    keys = [str(number).encode() for number in range(101)]
    parts = stage(options, pa.record_batch({"key": pa.array(keys), "value": pa.array(written)}))
    assert sum(part.staged.record_count for part in parts) == 101
    commit_parts(options.server, ("q", 0), parts)
    found = near_log.read_arrow("out", columns=("key", "value"))
    assert (found["key"].to_pylist(), found["value"].to_pylist()) == (keys, written)
    assert len(near_log.read("out")) > 5


def test_of_two_attempts_only_the_committed_one_counts(
    options: WriteOptions, near_log: RemoteLog, near_server: RealServer
) -> None:
    """INV-SINK-COUNTED."""
    slow = stage(options, rows("b", "a"))
    fast = stage(options, rows("a", "b"))
    commit_parts(options.server, ("q", 0), fast)
    assert values(near_log) == [b"a", b"b"]
    assert staged_count(near_server) == 2
    abort_parts(options.server, slow)
    abort_parts(options.server, ())
    assert staged_count(near_server) == 0
    assert values(near_log) == [b"a", b"b"]


def test_a_key_commits_once_and_a_repetition_is_deleted(
    options: WriteOptions, near_log: RemoteLog, near_server: RealServer, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-SINK-ONCE."""
    commit_parts(options.server, ("q", 3), stage(options, rows("a", "b")))
    commit_parts(options.server, ("q", 3), stage(options, rows("b", "a")))
    assert caplog.text == ""
    assert values(near_log) == [b"a", b"b"]
    assert staged_count(near_server) == 0
    with caplog.at_level(logging.WARNING, "seawall.spark"):
        commit_parts(options.server, ("q", 3), [*stage(options, rows("b")), *stage(options, rows("a", "c"))])
    assert "committed before with {'out': 2} records, but this repetition has {'out': 3}" in caplog.text
    with pytest.raises(FencedError, match=r"another run has advanced .* use a new checkpointLocation"):
        commit_parts(options.server, ("q", 2), stage(options, rows("late")))
    assert values(near_log) == [b"a", b"b"]


def test_an_abort_after_the_commit_takes_nothing_back(options: WriteOptions, near_log: RemoteLog) -> None:
    parts = stage(options, rows("a", "b"))
    commit_parts(options.server, ("q", 0), parts)
    abort_parts(options.server, parts)
    assert values(near_log) == [b"a", b"b"]


@pytest.mark.parametrize("gathered", [1, 1 << 20])
def test_topics_by_column(
    options: WriteOptions, near_log: RemoteLog, monkeypatch: pytest.MonkeyPatch, gathered: int
) -> None:
    monkeypatch.setattr(staging, "GATHERED_SIZE", gathered)
    near_log.create_topic("other")
    by_row = WriteOptions(options.server)
    batches = [
        pa.record_batch({"topic": ["out", "other", "out"], "value": [f"{n}a", f"{n}b", f"{n}c"]}) for n in range(3)
    ]
    same = pa.record_batch({"topic": ["other"], "value": ["last"]})
    commit_parts(options.server, ("q", 0), stage(by_row, *batches, same))
    assert values(near_log) == [f"{n}{letter}".encode() for n in range(3) for letter in "ac"]
    assert values(near_log, "other") == [b"0b", b"1b", b"2b", b"last"]
    # The option overrides the column.
    commit_parts(options.server, ("q", 1), stage(options, same))
    assert values(near_log)[-1] == b"last"


def test_every_column_arrives(options: WriteOptions, near_log: RemoteLog) -> None:
    moment = datetime(2024, 2, 29, 12, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "value": [b"full", b"plain"],
            "key": ["k", None],
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}], None], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
            ),
            "node": ["n", None],
            "tag": ["t", None],
            "meta": [b"m", None],
            "timestamp": pa.array([moment, None], pa.timestamp("us", "UTC")),
        }
    )
    commit_parts(options.server, ("q", 0), [*stage(options, batch), *stage(options, batch.slice(1))])
    found = near_log.read_arrow("out", columns=KNOWN_COLUMNS).to_pylist()
    first = found[0]
    assert (first["value"], first["key"], first["node"], first["tag"], first["meta"]) == (
        b"full",
        b"k",
        b"n",
        b"t",
        b"m",
    )
    assert first["headers"] == [{"key": "h", "value": b"1"}]
    assert first["timestamp"] == moment
    assert [(each["value"], each["key"], each["headers"]) for each in found[1:]] == [(b"plain", None, None)] * 2
    # Null columns do not turn a plain record into an envelope.
    assert found[1]["type"] != found[2]["type"]


def test_a_failed_task_deletes_its_staged_records(
    options: WriteOptions, near_log: RemoteLog, near_server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GATHERED_SIZE", 1)
    seen: list[int] = []

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows("a", "b")
        yield rows("c")
        stage(options, rows("of another task"))
        seen.append(staged_count(near_server))
        raise EOFError("the executor was lost")

    with pytest.raises(EOFError):
        stage_rows(failing(), ["value"], options, 0)
    assert seen[0] >= 1
    assert staged_count(near_server) == 1
    assert values(near_log) == []


@pytest.mark.parametrize(
    ("topic", "batch", "kind", "message"),
    [
        (None, {"topic": ["out", None], "value": ["a", "b"]}, InvalidInputError, "the topic of a row is null"),
        (None, {"topic": ["nowhere"], "value": ["a"]}, NotFoundError, "there is no topic 'nowhere' on .*: create it"),
        ("out", {"value": ["a", None]}, InvalidInputError, "the value of a row is null"),
    ],
)
def test_rows_that_cannot_be_written(
    options: WriteOptions,
    near_log: RemoteLog,
    topic: str | None,
    batch: dict[str, list[str]],
    kind: type[Exception],
    message: str,
) -> None:
    with pytest.raises(kind, match=message):
        stage(WriteOptions(options.server, topic), pa.record_batch(batch))
    assert values(near_log) == []


def test_a_commit_that_is_refused_changes_nothing(
    options: WriteOptions, near_log: RemoteLog, near_server: RealServer
) -> None:
    near_log.create_topic("memory", durability="ephemeral")
    parts = [*stage(options, rows("a")), *stage(WriteOptions(options.server, "memory"), rows("b"))]
    with pytest.raises(ConflictError, match="'memory' is kept in memory alone"):
        commit_parts(options.server, ("q", 0), parts)
    abort_parts(options.server, parts)
    assert values(near_log) == []
    assert staged_count(near_server) == 0


def test_a_missing_server_or_topic_is_an_error(options: WriteOptions) -> None:
    nowhere = ServerOptions("seawall://127.0.0.1:1", timeout_s=0.2)
    with pytest.raises(RetryableError, match=r"no answer from seawall://127\.0\.0\.1:1"):
        stage(WriteOptions(nowhere, "out"), rows("a"))
    # Staged records that cannot be deleted expire later: an abort raises no second error.
    abort_parts(nowhere, stage(options, rows("a")))
    with pytest.raises(NotFoundError, match="no topic 'nowhere'"):
        require_topic(options.server, "nowhere")


def test_a_write_only_token_may_write(tmp_path: Path) -> None:
    from real_server import RealServer

    from seawall.server.connection.access import Access, Right

    access = Access({"all": Right.ALL, "writer": Right.WRITE_ONLY})
    with RealServer(tmp_path / "closed", access) as closed, seawall.connect(closed.url, token="all") as log:
        log.create_topic("out")
        options = WriteOptions(ServerOptions(closed.url, "writer"), "out", "zstd")
        require_topic(options.server, "out")
        commit_parts(options.server, ("q", 0), stage(options, rows("a")))
        assert values(log) == [b"a"]


def test_tasks_rotate_over_the_servers() -> None:
    server = ServerOptions("seawall://a,b:7,c")
    targets = [task_target(server, partition).addresses for partition in range(4)]
    assert targets[0] == ("a:1992", "b:7", "c:1992")
    assert targets[1] == ("b:7", "c:1992", "a:1992")
    assert targets[2] == ("c:1992", "a:1992", "b:7")
    assert targets[3] == targets[0]


def test_options_are_parsed() -> None:
    found = write_options({"URL": "seawall://h", "Topic": "t", "compression": "ZSTD"}, is_stream=False)
    assert found == WriteOptions(ServerOptions("seawall://h"), "t", "zstd")
    keyed = write_options({"url": "u", "owner": "job", "epoch": "0"}, is_stream=False)
    assert keyed == WriteOptions(ServerOptions("u"), None, "none", ("job", 0))
    assert write_options({"url": "u", "checkpointLocation": "x"}, is_stream=True) == WriteOptions(ServerOptions("u"))


@pytest.mark.parametrize(
    ("given", "is_stream", "message"),
    [
        ({}, False, "option url is missing"),
        ({"topic": " "}, False, "option topic is empty"),
        ({"subscribe": "a"}, False, "no option of seawall is called 'subscribe'"),
        ({"topics": "a"}, False, "did you mean topic?"),
        ({"owner": "a"}, False, "give both, or none"),
        ({"owner": "a", "epoch": "-1"}, False, "option epoch is '-1': give a whole number"),
        ({"owner": "a", "epoch": "1"}, True, "option owner is for batch queries"),
        ({"compression": "gzip"}, False, "give none or lz4 or zstd"),
    ],
)
def test_options_that_are_refused(given: dict[str, str], is_stream: bool, message: str) -> None:
    url = {"url": "seawall://h"} if given else {}
    with pytest.raises(ConfigError) as caught:
        write_options(url | given, is_stream=is_stream)
    assert message in str(caught.value)


def test_columns_are_selected() -> None:
    named, by_row = WriteOptions(ServerOptions("u"), "t"), WriteOptions(ServerOptions("u"))
    assert written_columns({"value": "string"}, named) == ("value",)
    both = {"topic": "string", "value": "binary", "offset": "bigint", "key": "string"}
    assert written_columns(both, by_row) == ("value", "topic", "key")
    assert written_columns(both, named) == ("value", "key")


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({}, "needs a column value, binary or string; this one has no column"),
        ({"key": "binary"}, "this one has key"),
        ({"value": "binary", "vlaue": "int"}, "unknown columns vlaue"),
        ({"value": "bigint"}, "column value is bigint: it must be binary or string; cast it"),
        ({"value": "binary", "headers": "map<string,string>"}, "column headers is map<string,string>"),
        ({"value": "binary"}, "give option topic, or a column topic"),
    ],
)
def test_columns_that_are_refused(types: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written_columns(types, WriteOptions(ServerOptions("u")))
    assert message in str(caught.value)

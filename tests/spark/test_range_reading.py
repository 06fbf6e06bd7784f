"""The rows that a task reads of a range: the same from files and over the network, also after deletes and losses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from spark_reading import await_sealed, options_of, rows_of, stored_files

import seawall
from seawall.client.connection.requests import Requests
from seawall.client.remote_log import RemoteLog
from seawall.core.types import Seq
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import CorruptionError, DataLossError, UnsupportedError
from seawall.spark import reading
from seawall.spark.columns import BatchBytes, ColumnMaker, Rows
from seawall.spark.driver import range_of
from seawall.spark.planning import SeqRange
from seawall.spark.reading import RangeReader, read_range, target_of
from seawall.wire.format.codes import GapReason
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp2.files import FilesReply, FilesRequest

if TYPE_CHECKING:
    from real_server import RealServer

EVERYTHING = (
    "key,value,topic,partition,offset,timestamp,timestampType,headers,position,client_id,client_seq,node,tag,meta"
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, so that their edges are tested."""
    monkeypatch.setattr(reading, "PIECE_SIZE", 4_096)
    monkeypatch.setattr(reading, "_PLAIN_SIZE_MAX", 8_192)


def both_sources(url: str, topic: str, first: int = 1, end: int | None = None, **more: str) -> pa.Table:
    """The rows of a range, which must be the same from files and over the network."""
    more = {"columns": EVERYTHING, "virtualPartitions": "7", **more}
    from_files = rows_of(url, topic, first, end, read="files", **more)
    assert from_files.equals(rows_of(url, topic, first, end, read="network", **more))
    return from_files


def fill(log: RemoteLog, topic: str) -> int:
    """Publish all kinds of records, in segments of 40 and a rest; the next seq."""
    log.create_topic(topic, segment_max_records=40)
    log.publish(topic, [f"plain {n}" for n in range(60)])
    log.publish(topic, {"json": 1})
    log.publish(topic, b"")
    table = pa.table(
        {
            "value": [f"envelope {n}" for n in range(60)],
            "key": [None if n % 3 == 0 else f"key {n}".encode() for n in range(60)],
            "tag": [f"tag {n % 5}" for n in range(60)],
            "node": [b"\xff\xfe" if n == 7 else b"here" for n in range(60)],
            "meta": [None if n % 2 else b"meta" for n in range(60)],
            "timestamp": pa.array([None if n % 4 else n * 1_000_500 for n in range(60)], pa.timestamp("ns", "UTC")),
            "headers": [[{"key": "h", "value": b"v"}] if n % 2 else None for n in range(60)],
        }
    )
    log.publish_arrow(topic, table)
    with log.publisher(topic, compression="zstd") as publisher:
        for n in range(8):
            publisher.publish([f"compressed {n}/{m} " * 20 for m in range(50)]).result()
    for n in range(90):
        log.publish(topic, f"alone {n}")
    return log.describe(topic).next_seq


def seal(server: RealServer) -> None:
    """Have the server flush and seal what it can, as it does under memory pressure."""

    async def release_memory(log: ServedLog) -> None:
        log.release_memory()

    server.run(release_memory)


def test_files_and_network_have_the_same_rows(near_server: RealServer, near_log: RemoteLog) -> None:
    """INV-READ-RANGE."""
    end = fill(near_log, "all")
    seal(near_server)
    await_sealed(near_log, "all", end - 80)
    rows = both_sources(near_server.url, "all")
    assert rows["offset"].to_pylist() == list(range(1, end))
    assert rows["value"].to_pylist()[0] == b"plain 0"
    assert rows["value"].to_pylist()[-1] == b"alone 89"
    assert set(rows["topic"].to_pylist()) == {"all"}
    assert set(rows["timestampType"].to_pylist()) == {1}
    positions = np.array(rows["position"].to_pylist())
    assert (np.diff(positions) >= 0).all()
    assert rows["client_id"].null_count == 0
    keys, partitions = rows["key"].to_pylist(), rows["partition"].to_pylist()
    assert partitions == [0 if key is None else crc32c.crc32c(key) % 7 for key in keys]
    assert len(set(partitions)) > 3
    row = next(row for row in rows.to_pylist() if row["value"] == b"envelope 7")
    assert (row["key"], row["tag"], row["node"], row["meta"]) == (b"key 7", "tag 2", "��", None)
    assert row["headers"] == [{"key": "h", "value": b"v"}]
    # A part of the range has a part of the rows.
    for first, last in ((1, 2), (39, 42), (61, 130), (end - 91, end)):
        assert both_sources(near_server.url, "all", first, last).equals(rows.slice(first - 1, last - first))


def test_timestamps_of_clients(near_server: RealServer, near_log: RemoteLog) -> None:
    end = fill(near_log, "all")
    seal(near_server)
    await_sealed(near_log, "all", end - 80)
    rows = both_sources(near_server.url, "all", timestamps="client").to_pylist()
    of_clients = [row for row in rows if row["timestampType"] == 0]
    assert [row["value"] for row in of_clients] == [f"envelope {n}".encode() for n in range(0, 60, 4)]
    assert [int(row["timestamp"].timestamp() * 1e6) for row in of_clients] == [
        n * 1_000_500 // 1_000 for n in range(0, 60, 4)
    ]
    # A query with only one of the two columns gets the same.
    alone = rows_of(near_server.url, "all", timestamps="client", columns="timestampType")
    assert alone["timestampType"].to_pylist() == [row["timestampType"] for row in rows]


def test_deleted_records_are_skipped_without_a_gap(near_server: RealServer, near_log: RemoteLog) -> None:
    end = fill(near_log, "all")
    near_log.delete("all", tag="tag 3")
    near_log.delete("all", before_seq=50)
    seal(near_server)
    await_sealed(near_log, "all", end - 80)
    rows = both_sources(near_server.url, "all", includeGaps="true")
    assert "tag 3" not in rows["tag"].to_pylist()
    assert rows["offset"].to_pylist()[0] == 50
    assert rows["gap_reason"].null_count == rows.num_rows == end - 50 - 12
    near_log.delete("all", before_seq=end)
    assert both_sources(near_server.url, "all").num_rows == 0


@pytest.mark.parametrize("source", ["files", "network"])
def test_a_cap_under_the_reader_is_a_loss(
    near_server: RealServer, near_log: RemoteLog, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-READ-LOSS."""
    end = fill(near_log, "all")
    seal(near_server)
    await_sealed(near_log, "all", end - 80)
    near_log.configure_topic("all", cap_records=200)
    near_log.publish("all", "one more, which evicts others")
    floor = near_log.describe("all").floor
    assert floor > 1
    with pytest.raises(DataLossError) as caught:
        rows_of(near_server.url, "all", 1, read=source)
    lost = f"seqs from 1 to {floor - 1} are lost"
    for part in (lost, "by the cap of the topic", "failOnDataLoss=false", "includeGaps=true"):
        assert part in str(caught.value)
    with caplog.at_level(logging.WARNING, "seawall.spark"):
        rows = rows_of(near_server.url, "all", 1, read=source, failOnDataLoss="false")
    assert rows["offset"].to_pylist()[0] == floor
    assert f"{floor - 1} seqs" in caplog.text
    rows = rows_of(near_server.url, "all", 1, read=source, failOnDataLoss="false", includeGaps="true")
    first = rows.to_pylist()[0]
    assert (first["offset"], first["gap_last"], first["gap_reason"], first["value"]) == (1, floor - 1, "cap", None)
    assert rows["gap_reason"].to_pylist()[1:] == [None] * (rows.num_rows - 1)


@pytest.mark.parametrize(("is_cut", "why"), [(False, "are damaged"), (True, "its index says")])
def test_a_damaged_file_is_reported_by_the_server(
    near_server: RealServer, near_log: RemoteLog, tmp_path: Path, is_cut: bool, why: str
) -> None:
    end = fill(near_log, "all")
    seal(near_server)
    reply = await_sealed(near_log, "all", end - 80)
    topic = near_log.describe("all").topic_id
    path = tmp_path / "data" / "topics" / f"{topic:08x}" / reply.segments[1]
    content = bytearray(path.read_bytes())
    content[-20] ^= 0xFF
    path.write_bytes(content[:-10] if is_cut else content)
    with pytest.raises(UnsupportedError, match=f"{why}.*read=auto reads them over the network"):
        rows_of(near_server.url, "all", read="files")
    with pytest.raises(DataLossError, match="their file is damaged"):
        rows_of(near_server.url, "all")
    skipped = {"failOnDataLoss": "false", "includeGaps": "true"}
    rows = rows_of(near_server.url, "all", **skipped)
    assert rows.equals(rows_of(near_server.url, "all", read="network", **skipped))
    assert rows["gap_reason"].drop_null().to_pylist() == ["corruption"]


def test_missing_files_are_read_over_the_network(near_server: RealServer, near_log: RemoteLog, tmp_path: Path) -> None:
    end = fill(near_log, "all")
    seal(near_server)
    await_sealed(near_log, "all", end - 80)
    wanted = rows_of(near_server.url, "all", read="network")
    home = tmp_path / "data" / "topics"
    home.rename(tmp_path / "away")
    home.mkdir()
    try:
        assert rows_of(near_server.url, "all").equals(wanted)
        with pytest.raises(UnsupportedError, match="seqs from 1 on cannot be read from files"):
            rows_of(near_server.url, "all", read="files")
    finally:
        home.rmdir()
        (tmp_path / "away").rename(home)


def test_another_directory_under_the_same_path_is_not_read(
    near_server: RealServer, near_log: RemoteLog, tmp_path: Path
) -> None:
    """INV-FILES-SAME."""
    end = fill(near_log, "all")
    seal(near_server)
    await_sealed(near_log, "all", end - 80)
    preface = tmp_path / "data" / "FORMAT"
    before = preface.read_bytes()
    seawall.open(tmp_path / "other").close()
    preface.write_bytes((tmp_path / "other" / "FORMAT").read_bytes())
    try:
        with pytest.raises(UnsupportedError, match=r"is directory .* on the server"):
            rows_of(near_server.url, "all", read="files")
        assert rows_of(near_server.url, "all").num_rows == end - 1
    finally:
        preface.write_bytes(before)


def test_what_is_not_sealed_comes_over_the_network(near_server: RealServer, near_log: RemoteLog) -> None:
    near_log.create_topic("fresh")
    near_log.publish("fresh", ["a", "b"])
    assert stored_files(near_log, "fresh").end == 1
    assert rows_of(near_server.url, "fresh", read="files")["value"].to_pylist() == [b"a", b"b"]
    near_log.create_topic("memory", durability="ephemeral")
    near_log.publish("memory", ["a", "b"])
    assert rows_of(near_server.url, "memory", read="files")["value"].to_pylist() == [b"a", b"b"]


def test_a_topic_that_is_deleted_under_the_reader(near_server: RealServer, near_log: RemoteLog) -> None:
    near_log.create_topic("short")
    near_log.publish("short", ["a"])
    wanted = range_of(near_log.describe("short"), 1, 2)
    near_log.delete_topic("short")
    with pytest.raises(DataLossError, match="topic 'short' was deleted while seqs 1 to 1 were being read"):
        list(read_range(wanted, options_of(near_server.url, "short")))


def test_a_topic_that_ends_too_early(near_server: RealServer, near_log: RemoteLog) -> None:
    near_log.create_topic("short")
    near_log.publish("short", ["a"])
    topic = near_log.describe("short")
    wanted = SeqRange("short", topic.topic_id, 1, 5)
    with pytest.raises(DataLossError, match="ends at seq 2, but it had seqs up to 4 before"):
        list(read_range(wanted, options_of(near_server.url, "short")))
    [batch] = read_range(wanted, options_of(near_server.url, "short", failOnDataLoss="false"))
    assert batch.num_rows == 1


@pytest.mark.parametrize(("is_loss", "fails"), [(True, True), (False, False)])
def test_seqs_skipped_by_a_crash_may_be_a_loss(is_loss: bool, fails: bool) -> None:
    wanted = SeqRange("t", 1, 1, 9, is_crash_loss=is_loss)
    options = options_of("seawall://nowhere", "t")
    reader = RangeReader(Requests(target_of(options.server)), wanted, options)
    gap = Gap(Seq(2), Seq(3), GapReason.CRASH)
    if fails:
        with pytest.raises(DataLossError, match="by a crash of the server"):
            reader._lose(gap)
    else:
        reader._lose(gap)
    with pytest.raises(DataLossError, match="because of their age"):
        reader._lose(Gap(Seq(2), Seq(3), GapReason.TTL))


@pytest.mark.parametrize("failures", [1, 2])
def test_an_undecodable_block_is_requested_once_more(
    near_server: RealServer, near_log: RemoteLog, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    near_log.create_topic("t")
    near_log.publish("t", ["a", "b"])
    real, calls = ColumnMaker.rows, []

    def failing(self: ColumnMaker, parts: Sequence[BatchBytes], live: Any) -> Rows:
        calls.append(live)
        if len(calls) <= failures:
            raise CorruptionError("a block that does not decompress")
        return real(self, parts, live)

    monkeypatch.setattr(ColumnMaker, "rows", failing)
    if failures == 1:
        assert rows_of(near_server.url, "t", read="network")["value"].to_pylist() == [b"a", b"b"]
    else:
        with pytest.raises(CorruptionError, match="does not decompress"):
            rows_of(near_server.url, "t", read="network")
    assert len(calls) == 2


def test_a_server_without_the_files_request(
    near_server: RealServer, near_log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    near_log.create_topic("t")
    near_log.publish("t", ["a", "b"])
    monkeypatch.setattr(FilesRequest, "COMMAND", 0x7E)
    assert rows_of(near_server.url, "t")["value"].to_pylist() == [b"a", b"b"]


def test_rate_limited_readers_get_no_files(tmp_path: Path) -> None:
    from real_server import RealServer

    from seawall.server.connection.access import Access

    with RealServer(tmp_path / "slow", Access(read_rate=1 << 20)) as slow, seawall.connect(slow.url) as log:
        end = fill(log, "all")
        seal(slow)
        assert stored_files(log, "all") == FilesReply("", bytes(16), Seq(1), (), (), ())
        assert rows_of(slow.url, "all", read="files").num_rows == end - 1


def test_many_deleted_ranges_are_reported_in_several_answers(
    near_server: RealServer, near_log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seawall.server.read import stored_files as answering

    end = fill(near_log, "all")
    near_log.delete("all", tag="tag 1")
    seal(near_server)
    await_sealed(near_log, "all", end - 80)
    wanted = rows_of(near_server.url, "all", read="network")
    monkeypatch.setattr(answering, "FILES_RUNS_MAX", 2)
    reply = stored_files(near_log, "all")
    assert len(reply.live) == 2
    assert reply.end == reply.live[-1][1] + 1
    assert rows_of(near_server.url, "all", read="files").equals(wanted)
    monkeypatch.setattr(answering, "FILES_SEGMENTS_MAX", 1)
    assert len(stored_files(near_log, "all").segments) == 1
    assert rows_of(near_server.url, "all", read="files").equals(wanted)

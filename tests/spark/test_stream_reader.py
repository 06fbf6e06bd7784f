"""The reader behind the Spark source, without a session: offsets, limits, tasks, and topics that change in between."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import seawall
from seawall.client.remote_log import RemoteLog
from seawall.errors import ConfigError, DataLossError, NotFoundError, RetryableError
from seawall.spark.options import read_options
from seawall.testing import SimClock

pytest.importorskip("pyspark")

from pyspark.sql.datasource import Filter, GreaterThanOrEqual, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from seawall.spark import stream
from seawall.spark.driver import Driver
from seawall.spark.source import SeawallDataSource, SeawallFilteringReader, SeawallReader
from seawall.spark.stream import SeawallStreamReader

if TYPE_CHECKING:
    from real_server import RealServer

    from seawall.spark.offsets import Offset

ALL = ReadAllAvailable()


def reader_of(server: RealServer, **options: str) -> SeawallStreamReader:
    given = {"url": server.url, "subscribe": "t", "startingOffsets": "earliest", "timeout": "20s", **options}
    if "subscribePattern" in options:
        del given["subscribe"]
    return SeawallStreamReader(read_options(given, is_stream=True))


def seqs_of(offset: Offset) -> dict[str, int]:
    return {topic: place["0"] for topic, place in offset.items()}


def tasks_of(reader: SeawallStreamReader, start: Offset, end: Offset) -> list[tuple[str, int, int]]:
    return [(part.value.topic, part.value.first, part.value.end) for part in reader.partitions(start, end)]


@pytest.fixture
def topic(near_log: RemoteLog) -> str:
    near_log.create_topic("t")
    near_log.publish("t", [f"{n}" for n in range(20)])
    return "t"


def test_limits_of_spark_and_of_the_options(near_server: RealServer, topic: str) -> None:
    reader = reader_of(near_server, maxOffsetsPerTrigger="8")
    start = reader.initialOffset()
    assert seqs_of(start) == {"t": 1}
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    assert seqs_of(reader.latestOffset(start, reader.getDefaultReadLimit())) == {"t": 9}
    assert seqs_of(reader.latestOffset(start, ReadMaxRows(3))) == {"t": 4}
    assert seqs_of(reader.latestOffset(start, ALL)) == {"t": 21}
    end = reader.latestOffset(start, ALL)
    assert reader.latestOffset(end, ALL) == end == reader.reportLatestOffset()
    assert tasks_of(reader, start, end) == [("t", 1, 21)]
    assert reader.partitions(end, end) == []
    reader.stop()
    assert reader_of(near_server).getDefaultReadLimit() == ALL
    assert reader_of(near_server, minOffsetsPerTrigger="9").getDefaultReadLimit() == ReadMinRows(9)
    by_size = reader_of(near_server, maxBytesPerTrigger="40", minOffsetsPerTrigger="9")
    assert by_size.getDefaultReadLimit() == ReadMaxBytes(40)
    assert 1 < seqs_of(by_size.latestOffset(start, ReadMaxBytes(40)))["t"] < 20
    by_size.stop()


def test_small_batches_wait_for_the_trigger_delay(
    near_server: RealServer, near_log: RemoteLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimClock()
    monkeypatch.setattr(stream, "OsClock", lambda: clock)
    reader = reader_of(near_server, minOffsetsPerTrigger="15", maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert seqs_of(first) == {"t": 21}
    near_log.publish("t", ["a", "b"])
    assert reader.latestOffset(first, limit) == first
    assert seqs_of(reader.latestOffset(first, ALL)) == {"t": 23}
    clock.advance(9_999_999_999)
    assert reader.latestOffset(first, limit) == first
    clock.advance(1)
    assert seqs_of(reader.latestOffset(first, limit)) == {"t": 23}
    reader.stop()


def test_an_available_now_query_keeps_its_target(near_server: RealServer, near_log: RemoteLog, topic: str) -> None:
    reader = reader_of(near_server, subscribePattern="t.*", minOffsetsPerTrigger="100")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    near_log.publish("t", ["too late"])
    near_log.create_topic("too-late")
    near_log.publish("too-late", ["x"])
    end = reader.latestOffset(start, ReadMinRows(100))
    assert seqs_of(end) == {"t": 21}
    assert reader.latestOffset(end, ReadMinRows(100)) == end
    later = reader_of(near_server, subscribePattern="t.*")
    following = later.latestOffset(end, ALL)
    assert seqs_of(following) == {"t": 22, "too-late": 2}
    assert tasks_of(later, end, following) == [("t", 21, 22), ("too-late", 1, 2)]
    reader.stop()
    later.stop()


def test_deleted_records_take_no_space_in_a_batch(near_server: RealServer, near_log: RemoteLog, topic: str) -> None:
    near_log.publish_arrow("t", _tagged(50))
    near_log.publish("t", [f"{n}" for n in range(10)])
    near_log.delete("t", tag="gone")
    reader = reader_of(near_server, maxOffsetsPerTrigger="15")
    limit = reader.getDefaultReadLimit()
    ends = [reader.initialOffset()]
    while (end := reader.latestOffset(ends[-1], limit)) != ends[-1]:
        ends.append(end)
    assert [seqs_of(each)["t"] for each in ends] == [1, 16, 31, 81]
    near_log.delete("t", before_seq=81)
    assert seqs_of(reader.latestOffset(ends[0], limit)) == {"t": 81}
    reader.stop()


def _tagged(count: int) -> object:
    import pyarrow as pa

    return pa.table({"value": ["x"] * count, "tag": ["gone"] * count})


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_deleted_and_created_again(
    near_server: RealServer, near_log: RemoteLog, topic: str, fails: bool
) -> None:
    reader = reader_of(near_server, failOnDataLoss=str(fails).lower())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    near_log.delete_topic("t")

    def loss_or_result(text: str, work: object) -> object:
        assert callable(work)
        if fails:
            with pytest.raises(DataLossError, match=text):
                work()
            return None
        return work()

    assert loss_or_result("does not exist any more", lambda: reader.latestOffset(end, ALL)) in (None, end)
    assert loss_or_result("records up to seq 20", lambda: reader.partitions(start, end)) in (None, [])
    near_log.create_topic("t")
    near_log.publish("t", ["new"])
    found = loss_or_result("was deleted and created again", lambda: reader.latestOffset(end, ALL))
    assert loss_or_result("records up to seq 20", lambda: reader.partitions(start, end)) in (None, [])
    if not fails:
        assert isinstance(found, dict)
        assert seqs_of(found) == {"t": 2}
        assert found["t"]["epoch"] != end["t"]["epoch"]
        assert tasks_of(reader, end, found) == [("t", 1, 2)]
    ahead = {"t": {"0": 99, "epoch": near_log.describe("t").topic_epoch}}
    back = loss_or_result("ends at seq 2, but the query has read up to 99", lambda: reader.latestOffset(ahead, ALL))
    assert back in (None, ahead)
    reader.stop()


def test_readers_are_pickled_without_connections(near_server: RealServer, topic: str) -> None:
    reader = pickle.loads(pickle.dumps(reader_of(near_server)))
    [part] = reader.partitions(reader.initialOffset(), reader.reportLatestOffset())
    [batch] = reader.read(pickle.loads(pickle.dumps(part)))
    assert batch.num_rows == 20
    assert list(reader.read(InputPartition(None))) == []
    reader.stop()


def batch_reader(server: RealServer, **options: str) -> SeawallReader:
    given = {"url": server.url, "subscribe": "t", **options}
    return SeawallReader(read_options(given, is_stream=False))


def test_batch_queries_are_planned_once(near_server: RealServer, near_log: RemoteLog, topic: str) -> None:
    reader = batch_reader(near_server, minPartitions="3")
    parts = reader.partitions()
    assert [len(part.value) for part in parts] == [6, 7, 7]
    near_log.publish("t", ["later"])
    assert [batch.num_rows for part in parts for batch in reader.read(part)] == [6, 7, 7]
    with pytest.raises(NotFoundError, match="there is no topic absent"):
        batch_reader(near_server, subscribe="absent").partitions()
    with pytest.raises(NotFoundError, match="there is no topic absent"):
        batch_reader(near_server, subscribe="t,absent").partitions()


def test_a_start_time_after_the_last_record(near_server: RealServer, topic: str) -> None:
    tomorrow = str(int((time.time() + 86_400) * 1_000))
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy=latest"):
        batch_reader(near_server, startingTimestamp=tomorrow).partitions()
    late = batch_reader(near_server, startingTimestamp=tomorrow, startingOffsetsByTimestampStrategy="latest")
    assert late.partitions() == []


def test_a_server_that_does_not_answer() -> None:
    options = {"url": "seawall://127.0.0.1:1", "subscribe": "a", "timeout": "200ms"}
    with pytest.raises(RetryableError, match=r"no answer from seawall://127\.0\.0\.1:1"):
        SeawallReader(read_options(options, is_stream=False)).partitions()


def test_a_token_is_sent(tmp_path: Path) -> None:
    from real_server import RealServer

    from seawall.server.connection.access import Access, Right

    with RealServer(tmp_path / "closed", Access({"right": Right.ALL})) as closed:
        with seawall.connect(closed.url, token="right") as log:
            log.create_topic("t")
            log.publish("t", ["x"])
        reader = batch_reader(closed, token="right")
        [part] = reader.partitions()
        assert [batch.num_rows for batch in reader.read(part)] == [1]


def test_explicit_seqs(near_server: RealServer, near_log: RemoteLog, topic: str) -> None:
    epoch = near_log.describe("t").topic_epoch

    def first_of(**options: str) -> int:
        [part] = batch_reader(near_server, **options).partitions()
        return int(part.value.first)

    assert first_of(startingOffsets='{"t": {"0": 7}}') == 7
    assert first_of(startingOffsets=f'{{"t": {{"0": 7, "epoch": {epoch}}}}}') == 7
    assert first_of(startingOffsets='{"t": {"0": -2}}') == 1
    with pytest.raises(DataLossError, match="it was deleted and created again"):
        first_of(startingOffsets=f'{{"t": {{"0": 7, "epoch": {epoch + 1}}}}}')
    with pytest.raises(DataLossError, match="ends at seq 21, before seq 50"):
        first_of(endingOffsets='{"t": {"0": 50}}')
    assert first_of(endingOffsets='{"t": {"0": 50}}', failOnDataLoss="false") == 1
    assert (
        batch_reader(near_server, startingOffsets='{"t": {"0": 9}}', endingOffsets='{"t": {"0": 5}}').partitions() == []
    )
    pattern = {"url": near_server.url, "subscribePattern": "t", "startingOffsets": '{"x": {"0": 1}}'}
    with pytest.raises(ConfigError, match="has no entry for topic 't'"):
        SeawallReader(read_options(pattern, is_stream=False)).partitions()


def test_filters_limit_the_tasks(near_server: RealServer, topic: str) -> None:
    given = {"url": near_server.url, "subscribe": "t", "filterPushdown": "true"}
    reader = SeawallFilteringReader(read_options(given, is_stream=False))
    filters: list[Filter] = [GreaterThanOrEqual(("offset",), 15)]
    assert reader.pushFilters(filters) == filters
    [part] = reader.partitions()
    assert (part.value.first, part.value.end) == (15, 21)


def test_times_become_seqs(near_server: RealServer, near_log: RemoteLog, topic: str) -> None:
    driver = Driver(read_options({"url": near_server.url, "subscribe": "t"}, is_stream=False))
    described = driver.topics()["t"]
    assert driver.seq_at_us(described, 0) == 1
    assert driver.seq_at_us(described, 1) == 1
    assert driver.seq_at_us(described, 1 << 52) == 21
    driver.close()
    driver.close()


def test_the_source_is_called_seawall() -> None:
    assert SeawallDataSource.name() == "seawall"
    from pyspark_seawall import DefaultSource

    assert DefaultSource is SeawallDataSource

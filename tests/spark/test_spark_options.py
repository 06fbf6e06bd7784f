"""The options of the Spark source: how each is parsed, and the message of each refusal."""

from __future__ import annotations

import pytest

from seawall.errors import ConfigError
from seawall.limits import MIB
from seawall.spark.given_options import ServerOptions
from seawall.spark.option_values import EARLIEST, LATEST, Offsets, Times
from seawall.spark.options import (
    OPTIONS,
    Admission,
    Clock,
    ReadFrom,
    ReadOptions,
    Splitting,
    Subscription,
    named_columns,
    read_options,
)
from seawall.spark.schema import read_columns, spark_schema

NEEDED = {"url": "seawall://host", "subscribe": "events"}


def batch(**more: str) -> ReadOptions:
    return read_options(NEEDED | more, is_stream=False)


def stream(**more: str) -> ReadOptions:
    return read_options(NEEDED | more, is_stream=True)


def test_defaults_of_a_batch() -> None:
    assert batch() == ReadOptions(
        server=ServerOptions("seawall://host"),
        subscription=Subscription(("events",)),
        start=EARLIEST,
        end=LATEST,
        is_late_start_latest=False,
        columns=read_columns(None, has_headers=False, has_gaps=False),
        splitting=Splitting(1, None, 64 * MIB),
    )


def test_a_stream_starts_at_the_end() -> None:
    assert (stream().start, stream().admission) == (LATEST, Admission(None, None, None, 900_000))
    assert stream(startingOffsets="Earliest").start == EARLIEST


def test_names_are_case_insensitive() -> None:
    options = read_options({"URL": "seawall://host", "SUBSCRIBE": "a", "failondataloss": "False"}, is_stream=False)
    assert not options.fail_on_data_loss


def test_options_of_the_server() -> None:
    options = batch(url="seawalls://a,b:7", token="secret", tls="/ca.pem", timeout="1500ms")
    assert options.server == ServerOptions("seawalls://a,b:7", "secret", "/ca.pem", 1.5)
    assert "secret" not in repr(options)
    assert [batch(tls=text).server.tls for text in ("TRUE", "false")] == [True, False]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"subscribe": "b, a,b"}, Subscription(("b", "a"))),
        ({"subscribePattern": "ev.*"}, Subscription(pattern="ev.*")),
        ({"assign": '{"a": [0], "b": [0]}'}, Subscription(("a", "b"))),
    ],
)
def test_topics_of_a_query(given: dict[str, str], wanted: Subscription) -> None:
    assert read_options({"url": "seawall://host", **given}, is_stream=False).subscription == wanted


def test_starts_and_ends_and_their_precedence() -> None:
    by_offset = {"startingOffsets": '{"events": {"0": 17, "epoch": 4}}'}
    by_times = {"startingOffsetsByTimestamp": '{"events": {"0": 1700000000000}}'}
    assert batch(**by_offset).start == Offsets({"events": 17}, {"events": 4})
    assert batch(**by_offset, **by_times).start == Times({"events": 1_700_000_000_000})
    assert batch(**by_offset, **by_times, startingTimestamp="5").start == Times(5)
    assert batch(endingOffsets='{"events": {"0": -1}}').end == Offsets({"events": -1})
    assert batch(endingOffsets='{"events":{"0":9}}', endingOffsetsByTimestamp='{"events":{"0":8}}').end == Times(
        {"events": 8}
    )
    assert batch(endingOffsetsByTimestamp='{"events":{"0":8}}', endingTimestamp="7").end == Times(7)
    assert batch(startingOffsetsByTimestampStrategy="latest").is_late_start_latest
    pattern = read_options(
        {"url": "u", "subscribePattern": "e.*", "startingOffsets": '{"events": {"0": -2}}'}, is_stream=True
    )
    assert pattern.start == Offsets({"events": -2})


def test_all_other_options() -> None:
    options = stream(
        failOnDataLoss="false",
        read="Files",
        timestamps="client",
        virtualPartitions="8",
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxBytesPerTrigger="64m",
        maxTriggerDelay="5m",
        minPartitions="4",
        maxRecordsPerPartition="100",
        maxBytesPerPartition="1k",
        includeGaps="true",
        columns="value, Offset",
    )
    assert (options.fail_on_data_loss, options.read_from, options.clock) == (False, ReadFrom.FILES, Clock.CLIENT)
    assert options.virtual_partitions == 8
    assert options.admission == Admission(1_000, 10, 64 * MIB, 300_000)
    assert options.splitting == Splitting(4, 100, 1_024)
    assert options.columns == ("value", "offset", "gap_last", "gap_reason")
    assert batch(filterPushdown="true").pushes_filters


def test_columns() -> None:
    usual = "key value topic partition offset timestamp timestampType position client_id client_seq node tag meta"
    assert named_columns({}) == tuple(usual.split())
    assert set(named_columns({"includeHeaders": "true", "includeGaps": "true"})) == {
        *usual.split(),
        *("headers", "gap_last", "gap_reason"),
    }
    assert named_columns({"columns": "headers,value,value"}) == ("headers", "value")
    assert spark_schema(("value", "offset")) == "`value` binary, `offset` bigint"


#: Options besides url and subscribe, the kind of query, and the message of the refusal.
REFUSED: list[tuple[dict[str, str], str, str]] = [
    ({"subscribed": "a"}, "batch", "no option of seawall is called 'subscribed'; did you mean subscribe?"),
    ({"qqq": "a"}, "batch", "no option of seawall is called 'qqq' Options: url, token"),
    ({"assign": '{"a": [0]}'}, "batch", "subscribe and assign were given"),
    ({"maxOffsetsPerTrigger": "5"}, "batch", "option maxOffsetsPerTrigger is for streaming queries"),
    ({"endingOffsets": "latest"}, "stream", "option endingOffsets is for batch queries"),
    ({"startingOffsets": "latest"}, "batch", "startingOffsets=latest leaves a batch query nothing to read"),
    ({"endingOffsets": "earliest"}, "batch", "endingOffsets=earliest leaves nothing to read"),
    ({"endingOffsets": '{"events":{"0":-2}}'}, "batch", "-2, the earliest, is no end of a topic"),
    ({"startingOffsets": '{"events":{"0":-1}}'}, "batch", "-1, the latest, leaves a batch query nothing to read"),
    ({"startingOffsets": '{"events":{"0":0}}'}, "batch", "0 for topic events: seqs begin at 1"),
    ({"startingOffsets": '{"events":{"0":-3}}'}, "batch", "-3 for topic events: seqs begin at 1"),
    ({"startingOffsets": '{"events":{"1":5}}'}, "batch", 'topic events has partition "0" and no other'),
    ({"startingOffsets": '{"events":{"0":5, "1": 6}}'}, "batch", 'topic events has partition "0" and no other'),
    ({"startingOffsets": '{"events":5}'}, "batch", 'topic events has partition "0" and no other'),
    ({"startingOffsets": '{"events":{"0":"5"}}'}, "batch", "is no whole number"),
    ({"startingOffsets": '{"events":{"0":true}}'}, "batch", "is no whole number"),
    ({"startingOffsets": "{}"}, "batch", "option startingOffsets is '{}': give earliest, latest, or JSON"),
    ({"startingOffsets": "17"}, "batch", "option startingOffsets is '17': give earliest, latest, or JSON"),
    ({"startingOffsets": "newest"}, "batch", "option startingOffsets is 'newest': give earliest, latest, or JSON"),
    ({"startingOffsets": '{"other":{"0":5}}'}, "batch", "startingOffsets names other, which this query does not read"),
    (
        {"subscribe": "events,b", "startingOffsets": '{"events":{"0":5}}'},
        "batch",
        "startingOffsets has no entry for b: name every topic",
    ),
    ({"endingOffsets": '{"other":{"0":5}}'}, "batch", "endingOffsets names other"),
    ({"startingOffsetsByTimestamp": '{"events":{"0":-1}}'}, "batch", "milliseconds since 1970 are not negative"),
    ({"startingTimestamp": "yesterday"}, "batch", "give milliseconds since 1970"),
    ({"startingOffsetsByTimestampStrategy": "x"}, "batch", "is 'x': give error or latest"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "stream", "minOffsetsPerTrigger 9 is above"),
    ({"failOnDataLoss": "perhaps"}, "batch", "option failOnDataLoss is 'perhaps': give true or false"),
    ({"minPartitions": "0"}, "batch", "option minPartitions is '0': give a whole number above 0"),
    ({"minPartitions": "-4"}, "batch", "give a whole number above 0"),
    ({"maxBytesPerTrigger": "0"}, "stream", "give bytes above 0, as in 1048576, 64m or 1g"),
    ({"maxBytesPerTrigger": "5 parsecs"}, "stream", "give bytes above 0"),
    ({"maxTriggerDelay": "soon"}, "stream", "give a duration above 0, as in 500ms, 30s, 15m or 1h"),
    ({"read": "tape"}, "batch", "option read is 'tape': give auto or files or network"),
    ({"columns": "value,colour"}, "batch", "there is no column 'colour'; there are key, value, topic"),
    ({"subscribe": " , "}, "batch", "option subscribe is empty"),
]


@pytest.mark.parametrize(("given", "kind", "message"), REFUSED, ids=[message[:40] for _, _, message in REFUSED])
def test_invalid_options_are_refused(given: dict[str, str], kind: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options(NEEDED | given, is_stream=kind == "stream")
    assert message in str(caught.value)


def test_a_url_and_topics_are_required() -> None:
    with pytest.raises(ConfigError, match="option url is missing"):
        read_options({"subscribe": "a"}, is_stream=False)
    with pytest.raises(ConfigError, match="none was given"):
        read_options({"url": "seawall://host"}, is_stream=False)
    with pytest.raises(ConfigError, match="is no regular expression"):
        read_options({"url": "seawall://host", "subscribePattern": "("}, is_stream=False)
    with pytest.raises(ConfigError, match="topic a has partition 0 and no other"):
        read_options({"url": "seawall://host", "assign": '{"a": [1]}'}, is_stream=False)


def test_every_option_is_documented() -> None:
    from pathlib import Path

    document = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"`{name}`" not in document] == []

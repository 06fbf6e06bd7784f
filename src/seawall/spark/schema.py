"""The columns of a query, and their types in Spark and in Arrow.

| column          | type      | what                                                                                  |
|-----------------|-----------|---------------------------------------------------------------------------------------|
| `key`           | binary    | the key of an envelope                                                                |
| `value`         | binary    | the data of a record; null for a null                                                 |
| `topic`         | string    | its topic                                                                             |
| `partition`     | int       | CRC-32C of the key modulo `virtualPartitions`; 0 without a key                        |
| `offset`        | long      | its seq                                                                               |
| `timestamp`     | timestamp | when the log stored it, or the time of its writer (`timestamps=client`)               |
| `timestampType` | int       | 1 the log's time, 0 the writer's, as Kafka numbers them                               |
| `position`      | long      | the position of its batch in the total order                                          |
| `client_id`     | long      | the publisher of its batch, null without a session; 64 bits, so maybe negative        |
| `client_seq`    | long      | the number of its batch in that publisher's session                                   |
| `node`, `tag`   | string    | those of an envelope                                                                  |
| `meta`          | binary    | that of an envelope                                                                   |
| `headers`       | array     | of struct<key string, value binary>; with `includeHeaders`, or if `columns` names it  |
| `gap_last`      | long      | for a gap: its last seq (`offset` is its first one); with `includeGaps`               |
| `gap_reason`    | string    | for a gap: its reason, such as cap, ttl, crash or corruption; with `includeGaps`      |

Spark does not prune columns of a Python source, and each column costs time: select them with option `columns`.

The Arrow types are the ones that Spark expects for the Spark types; it refuses others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from seawall.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns and their types in Spark's notation.
COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "position": "bigint",
    "client_id": "bigint",
    "client_seq": "bigint",
    "node": "string",
    "tag": "string",
    "meta": "binary",
    "gap_last": "bigint",
    "gap_reason": "string",
}
_GAP_COLUMNS: Final = ("gap_last", "gap_reason")


def read_columns(text: str | None, *, has_headers: bool, has_gaps: bool) -> tuple[str, ...]:
    """The columns of a query in order: those in option `columns`, or all."""
    extra = (*(("headers",) if has_headers else ()), *(_GAP_COLUMNS if has_gaps else ()))
    if text is None:
        return tuple(name for name in COLUMNS if name in extra or name not in ("headers", *_GAP_COLUMNS))
    by_name = {name.lower(): name for name in COLUMNS if name not in _GAP_COLUMNS}
    named: dict[str, None] = {}
    for part in text.split(","):
        name = by_name.get(part.strip().lower())
        if name is None:
            raise ConfigError(
                f"option columns: there is no column {part.strip()!r}; there are {', '.join(by_name.values())}"
            )
        named[name] = None
    return tuple(named | dict.fromkeys(extra))


def named_types(columns: tuple[str, ...]) -> dict[str, str]:
    """The columns of a query and their types in Spark's notation."""
    return {name: COLUMNS[name] for name in columns}


def spark_schema(columns: tuple[str, ...]) -> str:
    """The schema of a query as DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of the batches for Spark."""
    import pyarrow as pa

    types = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        COLUMNS["headers"]: headers_type(),
    }
    return pa.schema([pa.field(name, types[COLUMNS[name]]) for name in columns])


def headers_type() -> pa.DataType:
    """The Arrow type of column `headers`."""
    import pyarrow as pa

    entry = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.list_(pa.field("element", entry))

"""The columns that a query gets, and their types in Spark and in Arrow.

| column          | type      | what                                                                                  |
|-----------------|-----------|---------------------------------------------------------------------------------------|
| `key`           | binary    | the key of an envelope                                                                |
| `value`         | binary    | the data of a record; null for a null                                                 |
| `topic`         | string    | its topic                                                                             |
| `partition`     | int       | CRC-32C of the key modulo `virtualPartitions`; 0 without a key                        |
| `offset`        | long      | its seq                                                                               |
| `timestamp`     | timestamp | when the log stored it, or what its writer says (`timestamps=client`)                 |
| `timestampType` | int       | 1 the log's time, 0 the writer's, as Kafka numbers them                               |
| `position`      | long      | its batch in the total order                                                          |
| `client_id`     | long      | who published its batch, null where nobody's session did; 64 bits, so maybe negative  |
| `client_seq`    | long      | the number of its batch by that publisher                                             |
| `node`, `tag`   | string    | those of an envelope                                                                  |
| `meta`          | binary    | that of an envelope                                                                   |
| `headers`       | array     | of struct<key string, value binary>; with `includeHeaders`, or if `columns` names it  |
| `gap_last`      | long      | of a row that is a gap: its last seq; `offset` is its first; with `includeGaps`        |
| `gap_reason`    | string    | of a row that is a gap: why, as in cap, ttl, crash or corruption; with `includeGaps`   |

Spark prunes no columns of a Python source and pays for each: `columns` names those that are wanted.

The Arrow types here are what Spark makes of the Spark types: it refuses anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from seawall.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

#: Name and type, as Spark writes types.
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
    """The columns of a query, in their order: those that option `columns` names, or all."""
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
    """The columns of a query with their types, as Spark writes types."""
    return {name: COLUMNS[name] for name in columns}


def spark_schema(columns: tuple[str, ...]) -> str:
    """The schema of a query as Spark reads it."""
    return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)


def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of the batches that Spark takes for it."""
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
    """The type of the column headers."""
    import pyarrow as pa

    entry = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.list_(pa.field("element", entry))

"""The options for writing `format("seawall")`, and the columns that a frame may have.

| column        | type                                      | in a record                                |
|---------------|-------------------------------------------|--------------------------------------------|
| `value`       | binary or string, required                | the data                                   |
| `topic`       | string                                    | its topic, unless option `topic` is given  |
| `key`, `meta` | binary or string                          | those of its envelope                      |
| `node`, `tag` | string or binary                          | those of its envelope                      |
| `timestamp`   | timestamp                                 | the writer's time                          |
| `headers`     | array of struct<key string, value binary> | those of its envelope                      |

The frame may have the other columns of the source; they are ignored, because the log assigns those numbers. An unknown
column raises `ConfigError`, because it is probably a misspelt one. This module must not know Spark, nor contact a
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from seawall.errors import ConfigError
from seawall.spark.given_options import BATCH, BOTH, SERVER_OPTIONS, STREAM, GivenOptions, ServerOptions
from seawall.spark.option_values import read_choice, read_whole
from seawall.spark.schema import COLUMNS

if TYPE_CHECKING:
    from seawall.api.publisher_options import Compression

_BYTES: Final = ("binary", "string")
_HEADERS: Final = ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>")

#: The columns that are written, and their allowed types.
WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "topic": ("string",),
    "key": _BYTES,
    "headers": _HEADERS,
    "node": _BYTES,
    "tag": _BYTES,
    "meta": _BYTES,
    "timestamp": ("timestamp",),
}

#: All options, and the kinds of query that they apply to. Spark passes on its own `checkpointLocation` and `queryName`.
WRITE_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    **SERVER_OPTIONS,
    "topic": BOTH,
    "compression": BOTH,
    "owner": BATCH,
    "epoch": BATCH,
    "checkpointLocation": STREAM,
    "queryName": STREAM,
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All options of a query that writes. Pickled to executors."""

    server: ServerOptions
    #: The topic of all records; None if column `topic` names it.
    topic: str | None = None
    compression: Compression = "none"
    #: The key (owner, epoch) that makes a batch write idempotent; None for a new key.
    key: tuple[str, int] | None = None


def write_options(given: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Parse the options of a query; `ConfigError` if they are wrong."""
    options = GivenOptions(given, WRITE_OPTIONS, "stream" if is_stream else "batch")
    topic = options.text("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty: name a topic, or leave it out and add a column topic")
    compression = options.get("compression", read_choice("none", "lz4", "zstd"), "none")
    owner, epoch = options.text("owner"), options.get("epoch", read_whole, None)
    if (owner is None) != (epoch is None):
        raise ConfigError("options owner and epoch are the key under which a write happens once: give both, or none")
    key = None if owner is None or epoch is None else (owner, epoch)
    return WriteOptions(options.server(), topic, cast("Compression", compression), key)


def written_columns(types: Mapping[str, str], options: WriteOptions) -> tuple[str, ...]:
    """The columns of a frame to write; `ConfigError` if the frame cannot be written.

    `types` has the columns of the frame and their types in Spark's notation.
    """
    if "value" not in types:
        found = ", ".join(types) or "no column"
        raise ConfigError(f"a frame to write needs a column value, binary or string; this one has {found}")
    unknown = sorted(name for name in types if name not in COLUMNS)
    if unknown:
        raise ConfigError(
            f"unknown columns {', '.join(unknown)}: a frame to write has {', '.join(WRITTEN)}. Put everything else "
            "into the value, for example with to_json, and select those columns"
        )
    for name, kinds in WRITTEN.items():
        if name in types and types[name] not in kinds:
            raise ConfigError(f"column {name} is {types[name]}: it must be {' or '.join(kinds)}; cast it")
    if options.topic is None and "topic" not in types:
        raise ConfigError("the records have no topic: give option topic, or a column topic")
    return tuple(name for name in WRITTEN if name in types and (name != "topic" or options.topic is None))

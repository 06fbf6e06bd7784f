"""The options of writing `format("seawall")`, and which columns a frame may have.

| column        | type                                      | in a record                                |
|---------------|-------------------------------------------|--------------------------------------------|
| `value`       | binary or string, required                | the data                                   |
| `topic`       | string                                    | its topic, where option `topic` names none |
| `key`, `meta` | binary or string                          | those of an envelope                       |
| `node`, `tag` | string or binary                          | those of an envelope                       |
| `timestamp`   | timestamp                                 | the writer's time                          |
| `headers`     | array of struct<key string, value binary> | those of an envelope                       |

The other columns of the source may be there and are passed over: the log gives those numbers itself. Any column that
nothing knows is refused, since it is likely to be a misspelt one. This module must not know Spark, nor ask a server.
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

#: What a frame may have, and as what.
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

#: Every option, and the kinds of query it has a meaning for. Spark hands on what it has read itself.
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
    """Everything that a query says about writing. Goes to executors as it is."""

    server: ServerOptions
    #: Where all records go; None if each row says it.
    topic: str | None = None
    compression: Compression = "none"
    #: Under which key a batch write happens once; None if it has one of its own.
    key: tuple[str, int] | None = None


def write_options(given: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """The options of a query; `ConfigError` says what is wrong with them."""
    options = GivenOptions(given, WRITE_OPTIONS, "stream" if is_stream else "batch")
    topic = options.text("topic")
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty: name a topic, or leave it out and have a column topic")
    compression = options.get("compression", read_choice("none", "lz4", "zstd"), "none")
    owner, epoch = options.text("owner"), options.get("epoch", read_whole, None)
    if (owner is None) != (epoch is None):
        raise ConfigError("options owner and epoch are the key under which a write happens once: give both, or none")
    key = None if owner is None or epoch is None else (owner, epoch)
    return WriteOptions(options.server(), topic, cast("Compression", compression), key)


def written_columns(types: Mapping[str, str], options: WriteOptions) -> tuple[str, ...]:
    """Which columns of a frame are written; `ConfigError` if it cannot be.

    `types` are its columns with their types, as Spark writes types.
    """
    if "value" not in types:
        found = ", ".join(types) or "no column"
        raise ConfigError(f"a frame to write needs a column value, binary or string; this one has {found}")
    unknown = sorted(name for name in types if name not in COLUMNS)
    if unknown:
        raise ConfigError(
            f"nothing is known to be done with {', '.join(unknown)}: a frame to write has {', '.join(WRITTEN)}. "
            "Put what belongs to the value into it, as with to_json, and select those columns"
        )
    for name, kinds in WRITTEN.items():
        if name in types and types[name] not in kinds:
            raise ConfigError(f"column {name} is {types[name]}: it must be {' or '.join(kinds)}; cast it")
    if options.topic is None and "topic" not in types:
        raise ConfigError("nothing says where records go: give option topic, or a column topic")
    return tuple(name for name in WRITTEN if name in types and (name != "topic" or options.topic is None))

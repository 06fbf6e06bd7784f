"""The stored configuration of a topic: reads it from the log or a snapshot, and applies the changes that are allowed.

`api/topic_config.py` defines the settings, which clients share.

`type`, `order`, and whether a topic is ephemeral, are fixed at creation (`ConflictError`): no later change could add
the leases of queues, the windows of ordered clients, or the records of files.
"""

from __future__ import annotations

from functools import lru_cache

from seawall import limits
from seawall.api.topic_config import Discard, Durability, Order, TopicConfig, TopicType
from seawall.errors import ConfigError, ConflictError, CorruptionError
from seawall.wire.format.fields import JsonObject, JsonValue

__all__ = ["Discard", "Durability", "Order", "TopicConfig", "TopicType", "changed_config", "stored_config"]


def stored_config(document: JsonObject) -> TopicConfig:
    """Parse a configuration from the log or a snapshot; an invalid one is damage, since none is ever written."""
    try:
        # Thousands of topics share a configuration, so it is cached. The types are part of the key: 1 is not true.
        return _stored(tuple([(key, type(value), value) for key, value in document.items()]))
    except ConfigError as error:
        raise CorruptionError(f"stored configuration: {error}") from error
    except TypeError as error:
        raise CorruptionError(
            "stored configuration: a value is an array or an object, which no setting allows"
        ) from error


def changed_config(config: TopicConfig, document: JsonObject) -> TopicConfig:
    """A copy of a configuration with some settings changed; `ConflictError` if one of them is fixed."""
    changed = config.changed(document)
    in_memory = [each.durability is Durability.EPHEMERAL for each in (config, changed)]
    fixed = (("type", config.kind, changed.kind), ("order", config.order, changed.order), ("ephemeral", *in_memory))
    for key, before, after in fixed:
        if before != after:
            raise ConflictError(
                f"{key} of a topic is fixed: it cannot change from {before} to {after}; create another topic, or "
                "delete this one first"
            )
    return changed


@lru_cache(maxsize=limits.TOPIC_CONFIGS_CACHED)
def _stored(settings: tuple[tuple[str, type, JsonValue], ...]) -> TopicConfig:
    """The configuration of a stored document, given by its items."""
    return TopicConfig.from_json({key: value for key, _, value in settings})

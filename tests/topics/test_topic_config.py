"""The settings of a topic: defaults, rules, patches, and error messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import ConfigError, ConflictError, CorruptionError
from seawall.topics.config import Discard, Durability, Order, TopicConfig, TopicType, changed_config, stored_config
from seawall.wire.format.codes import AckLevel

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durability": "fsync",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "order": 2,
    "ack_level": 2,
    "segment_max_records": 10_000,
    "segment_max_bytes": 64 * 1024 * 1024,
    "segment_max_age_ms": 3_600_000,
    "durable": True,
}


def test_defaults() -> None:
    config = TopicConfig()
    assert config.to_json() == DEFAULTS
    assert TopicConfig.from_json({}) == config == TopicConfig.from_json(DEFAULTS)
    assert all(type(value) in (str, int, bool, type(None)) for value in config.to_json().values())


configs = st.builds(
    TopicConfig,
    kind=st.sampled_from(TopicType),
    ttl_ms=st.integers(0, 2**64 - 1),
    cap_records=st.integers(0, 2**64 - 1),
    discard=st.sampled_from(Discard),
    durability=st.sampled_from(Durability),
    priority=st.none() | st.integers(-2000, 2000),
    auto_create=st.booleans(),
    dead_letter=st.none() | st.sampled_from(["dead", "x.y:z"]),
    order=st.sampled_from(Order),
    ack_level=st.sampled_from(AckLevel),
)


@given(configs)
def test_a_config_round_trips(config: TopicConfig) -> None:
    assert TopicConfig.from_json(config.to_json()) == config
    assert stored_config(config.to_json()) == config
    assert changed_config(config, {}) == config
    assert changed_config(config, config.to_json()) == config


@pytest.mark.parametrize(
    ("document", "durability", "durable"),
    [
        ({"durable": True}, Durability.FSYNC, True),
        ({"durable": False}, Durability.DISK, False),
        ({"durable": True, "durability": "memory"}, Durability.MEMORY, False),
        ({"durability": "ephemeral"}, Durability.EPHEMERAL, False),
    ],
)
def test_durable_is_a_short_form(document: dict, durability: Durability, durable: bool) -> None:
    config = TopicConfig.from_json(document)
    assert config.durability is durability
    assert config.to_json()["durable"] is durable


@pytest.mark.parametrize(
    ("key", "given", "taken"),
    [
        ("priority", 5000, 1000),
        ("priority", -5000, -1000),
        ("lease_ms", 1, 100),
        ("lease_ms", 10**9, 86_400_000),
        ("claim_jitter_ms", 10**6, 5000),
    ],
)
def test_numbers_beyond_a_published_range_are_clamped(key: str, given: int, taken: int) -> None:
    assert TopicConfig.from_json({key: given}).to_json()[key] == taken


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"cap_record": 1}, r"no setting 'cap_record': did you mean cap_records\?"),
        ({"zzzzzz": 1}, "the settings are type, ttl_ms"),
        ({"kind": "log"}, "no setting 'kind'"),
        ({"ttl_ms": -1}, "ttl_ms of a topic is -1: it must be a whole number from 0 to 18446744073709551615"),
        ({"ttl_ms": 2**64}, "ttl_ms"),
        ({"ttl_ms": 1.5}, "ttl_ms"),
        ({"ttl_ms": True}, "ttl_ms"),
        ({"ttl_ms": "1"}, "ttl_ms"),
        ({"lease_ms": -1}, "lease_ms"),
        ({"priority": "high"}, "a whole number, or null"),
        ({"type": "table"}, "one of log, queue"),
        ({"type": 3}, "one of log, queue"),
        ({"discard": None}, "one of old, reject"),
        ({"order": 3}, "one of 0, 1, 2, 5"),
        ({"ack_level": 3}, "one of 0, 1, 2"),
        ({"auto_create": 1}, "true or false"),
        ({"durable": "yes"}, "true or false"),
        ({"dead_letter": "a/b"}, "the name of a topic, or null"),
        ({"dead_letter": 5}, "the name of a topic, or null"),
        ({"segment_max_records": 0}, "from 1 to"),
        ({"segment_max_bytes": 4095}, "from 4096 to"),
        ({"ttl_ms": "x" * 500}, "…"),
    ],
)
def test_an_invalid_setting_is_named(document: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TopicConfig.from_json(document)
    with pytest.raises(ConfigError, match=message):
        changed_config(TopicConfig(), document)
    with pytest.raises(CorruptionError, match="stored configuration"):
        stored_config(document)


def test_the_constructor_refuses_invalid_settings() -> None:
    with pytest.raises(ConfigError, match="cap_bytes"):
        TopicConfig(cap_bytes=-1)


def test_a_patch_keeps_the_settings_it_omits() -> None:
    config = TopicConfig.from_json({"ttl_ms": 5, "type": "queue", "order": 5})
    changed = changed_config(config, {"cap_records": 9, "durable": False})
    assert (changed.ttl_ms, changed.cap_records, changed.durability) == (5, 9, Durability.DISK)
    assert (changed.kind, changed.order) == (TopicType.QUEUE, Order.CLIENT)
    for fixed in ({"type": "log"}, {"order": 2}):
        with pytest.raises(ConflictError, match="is fixed"):
            changed_config(config, fixed)


def test_unknown_settings_of_a_newer_server_are_ignored() -> None:
    received = {**DEFAULTS, "cap_records": 7, "not invented yet": 1}
    assert TopicConfig.from_server(received) == TopicConfig(cap_records=7)
    with pytest.raises(ConfigError, match="durability"):
        TopicConfig.from_server({**DEFAULTS, "durability": "tape"})

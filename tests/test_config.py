"""The configuration: every source, every rule, every message."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import config, limits
from seawall.config import Config, DiskBackend, DiskConfig, Toggle, load, rules
from seawall.errors import CallerError, ConfigError

KEYS = [
    "kernels.cache_dir",
    "disk.backend",
    "disk.ring_entries",
    "disk.direct_sync",
    "storage.wal_file_size",
    "storage.checkpoint_size",
    "storage.ballast_size",
    "storage.staging_ttl_ms",
    "storage.session_ttl_ms",
    "storage.sessions_max",
    "storage.ephemeral_size",
    "storage.group",
    "fabric.directory",
    "fabric.brokers",
    "fabric.goi_entries",
    "fabric.pbr_entries",
    "fabric.checkpoint_size",
    "fabric.blog_size",
    "topology.pin",
    "server.listen",
    "server.brokers",
    "server.connections",
    "server.token_file",
    "server.tls_cert",
    "server.tls_key",
    "server.tls_client_ca",
    "server.memory_limit",
    "server.peer_memory",
    "server.connection_memory",
    "server.read_rate",
    "server.outbox_size",
    "server.stall",
    "server.drain",
    "server.v1_past_end",
    "server.v1_idle",
    "bench.directory",
    "bench.seconds",
    "bench.rounds",
]

paths = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
hosts = st.sampled_from(["127.0.0.1", "[::1]", "log.example", "0.0.0.0"])
addresses = st.builds("{}:{}".format, hosts, st.integers(0, 65_535))
valid = {
    "kernels.cache_dir": paths,
    "disk.backend": st.sampled_from(["auto", "resident", "uring"]),
    "disk.ring_entries": st.integers(1, 12).map(lambda exponent: 2**exponent),
    "disk.direct_sync": st.sampled_from(["auto", "on", "off"]),
    "storage.wal_file_size": st.integers(limits.WAL_FILE_SIZE_MIN, limits.WAL_FILE_SIZE_MAX),
    "storage.checkpoint_size": st.integers(limits.WAL_FILE_SIZE_MIN, 1 << 40),
    "storage.ballast_size": st.integers(0, 1 << 40),
    "fabric.directory": paths,
    "fabric.brokers": st.integers(1, 32),
    "fabric.goi_entries": st.integers(7, 28).map(lambda exponent: 2**exponent),
    "fabric.pbr_entries": st.integers(6, 19).map(lambda exponent: 2**exponent),
    "fabric.checkpoint_size": st.integers(*limits.FABRIC_CHECKPOINT_RANGE),
    "fabric.blog_size": st.integers(*limits.FABRIC_BLOG_RANGE),
    "topology.pin": st.booleans(),
    "server.listen": st.lists(addresses, min_size=1, max_size=16).map(",".join),
    "server.brokers": st.integers(1, 31),
    "server.connections": st.integers(1, 1_000_000),
    "server.token_file": paths,
    "server.tls_cert": paths,
    "server.tls_key": paths,
    "server.tls_client_ca": paths,
    "storage.ephemeral_size": st.just(0) | st.integers(1 << 20, limits.TIB),
    "server.peer_memory": st.just(0) | st.integers(limits.PEER_MEMORY_SIZE_MIN, limits.TIB),
    "server.memory_limit": st.just(0) | st.integers(64 << 20, limits.TIB),
    "server.read_rate": st.just(0) | st.integers(limits.READ_RATE_MIN, limits.TIB),
    "server.outbox_size": st.integers(1 << 20, 1 << 30),
    "server.stall": st.floats(1, 3600),
    "server.drain": st.just(0.0) | st.floats(0.01, 3600),
    "server.v1_past_end": st.sampled_from(["error", "catching_up", "empty"]),
    "server.v1_idle": st.just(0.0) | st.floats(60, 86_400),
    "bench.directory": paths.filter(bool),
    "bench.seconds": st.floats(0.01, 3600),
    "bench.rounds": st.integers(5, 1000),
}
some_values = st.fixed_dictionaries({}, optional=valid)


def as_toml(values: dict[str, object]) -> str:
    lines = []
    for section in dict.fromkeys(key.split(".")[0] for key in values):
        lines.append(f"[{section}]")
        for key, value in values.items():
            if key.startswith(section + "."):
                # A JSON string is a TOML string except for DEL, which TOML requires escaped.
                text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
                lines.append(f"{key.split('.')[1]} = {text}")
    return "\n".join(lines)


def variable(key: str) -> str:
    return "SEAWALL_" + key.replace(".", "_").upper()


def as_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


@pytest.fixture(scope="module")
def toml_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "seawall.toml"


def refused(match: str, **sources: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**sources)  # type and meaning of the sources are what is tested
    assert match in str(caught.value)


def test_the_defaults() -> None:
    loaded = load()
    assert loaded.config == Config()
    assert dict(loaded.origins) == dict.fromkeys(KEYS, "default")
    assert loaded.config.disk == DiskConfig(DiskBackend.AUTO, limits.DISK_RING_ENTRIES, Toggle.AUTO)
    assert [loaded.config.value(key) for key in KEYS] == [
        *("", "auto", 256, "auto"),
        *(64 << 20, 1 << 30, 1 << 20, 86_400_000, 86_400_000, 1_000_000, 0, ""),
        *("", 1, 1 << 16, 1 << 12, 16 << 20, 32 << 20),
        *(
            False,
            "127.0.0.1:1992",
            1,
            10_000,
            "",
            "",
            "",
            "",
            0,
            0,
            64 << 20,
            0,
            8 << 20,
            60.0,
            25.0,
            "catching_up",
            0.0,
        ),
        *(".", 2.0, 5),
    ]


def test_every_setting_is_declared_once_with_a_help_text() -> None:
    assert list(config.SETTINGS) == KEYS
    for key, setting in config.SETTINGS.items():
        assert setting.help
        assert setting.rule.allowed
        assert setting.rule.read(setting.default) == setting.default
        assert setting.variable == variable(key)


@given(values=some_values)
def test_any_valid_configuration_round_trips_as_toml(toml_file: Path, values: dict[str, object]) -> None:
    toml_file.write_bytes(as_toml(values).encode())
    loaded = load(str(toml_file))
    for key in KEYS:
        assert loaded.config.value(key) == values.get(key, config.SETTINGS[key].default)
        assert loaded.origins[key] == (f"file {toml_file}" if key in values else "default")


@given(in_file=some_values, in_environment=some_values, in_flags=some_values)
def test_later_sources_win(
    toml_file: Path, in_file: dict[str, object], in_environment: dict[str, object], in_flags: dict[str, object]
) -> None:
    toml_file.write_bytes(as_toml(in_file).encode())
    environ = {variable(key): as_text(value) for key, value in in_environment.items()}
    loaded = load(str(toml_file), {**environ, "HOME": "/nowhere"}, in_flags)
    for key in KEYS:
        expected, origin = config.SETTINGS[key].default, "default"
        for values, name in (
            (in_file, f"file {toml_file}"),
            (in_environment, f"environment {variable(key)}"),
            (in_flags, "flag --set"),
        ):
            if key in values:
                expected, origin = values[key], name
        assert (loaded.config.value(key), loaded.origins[key]) == (expected, origin)


def test_the_file_is_chosen_by_the_caller_or_else_by_the_environment(tmp_path: Path) -> None:
    for name, rounds in (("first", 6), ("second", 7)):
        (tmp_path / name).write_text(f"bench.rounds = {rounds}\n")
    environ = {"SEAWALL_CONFIG": str(tmp_path / "first")}
    assert load(environ=environ).config.bench.rounds == 6
    assert load(str(tmp_path / "second"), environ).config.bench.rounds == 7


def test_no_file_is_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seawall.toml").write_text("[bench]\nrounds = 9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEAWALL_BENCH_ROUNDS", "8")
    assert load().config.bench.rounds == 5


def test_a_configuration_is_frozen() -> None:
    loaded = load()
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.config.bench.rounds = 7
    with pytest.raises(TypeError):
        loaded.origins["bench.rounds"] = "nobody"


# --- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "raw", "value"),
    [
        (rules.switch(), True, True),
        (rules.switch(), " ON ", True),
        (rules.switch(), "false", False),
        (rules.switch(), 1, None),
        (rules.switch(), "maybe", None),
        (rules.integer(0, 10), "10", 10),
        (rules.integer(0, 10), 11, None),
        (rules.integer(0, 10), "-1", None),
        (rules.integer(-5, 10), "-1", -1),
        (rules.integer(0, 10), 5.0, None),
        (rules.integer(0, 10), "5.0", None),
        (rules.integer(0, 10), True, None),
        (rules.integer(0, 10), "", None),
        (rules.integer(0, 10), "٣", None),
        (rules.integer(0, 10), [1], None),
        (rules.integer(0, 10), "9" * 5000, None),
        (rules.integer(0, 10**6), "1_000", 1000),
        (rules.integer(0, 16, power_of_two=True), 8, 8),
        (rules.integer(0, 16, power_of_two=True), 12, None),
        (rules.size(0, limits.GIB), "64MiB", 64 * limits.MIB),
        (rules.size(0, limits.GIB), " 4 KiB ", 4096),
        (rules.size(0, limits.GIB), "17B", 17),
        (rules.size(0, limits.GIB), 65536, 65536),
        (rules.size(0, limits.GIB), "1GiB", limits.GIB),
        (rules.size(0, limits.GIB), "2GiB", None),
        (rules.size(0, limits.GIB), "64MB", None),
        (rules.size(0, limits.GIB), 1.5, None),
        (rules.duration(0, 7200), "250ms", 0.25),
        (rules.duration(0, 7200), "0.5", 0.5),
        (rules.duration(0, 7200), "100us", 1e-4),
        (rules.duration(0, 7200), "1.5m", 90.0),
        (rules.duration(0, 7200), "2h", 7200.0),
        (rules.duration(0, 7200), "3h", None),
        (rules.duration(0, 7200), 2, 2.0),
        (rules.duration(0, 7200), "-1s", None),
        (rules.duration(0, 7200), "1e3", None),
        (rules.duration(0, 7200), float("nan"), None),
        (rules.duration(0, 7200), float("inf"), None),
        (rules.duration(0, 7200), 10**400, None),
        (rules.duration(0, 7200), "2 days", None),
        (rules.path_text(), "data/one", "data/one"),
        (rules.path_text(), "", None),
        (rules.path_text(), "a\0b", None),
        (rules.path_text(), 7, None),
        (rules.path_text(may_be_empty=True), "", ""),
        (rules.choice(Toggle), "on", Toggle.ON),
        (rules.choice(Toggle), "ON", None),
        (rules.choice(Toggle), True, None),
    ],
)
def test_rules_accept_and_refuse_values(rule: config.Rule, raw: object, value: object) -> None:
    read = rule.read(raw)
    assert read == value
    assert type(read) is type(value)


# --- messages ----------------------------------------------------------------------------------------------------


def test_configuration_errors_are_caller_errors() -> None:
    assert issubclass(ConfigError, CallerError)


def test_a_value_out_of_range_names_key_value_source_and_range() -> None:
    refused(
        "disk.ring_entries is '3' (environment SEAWALL_DISK_RING_ENTRIES): it must be a power of two from 2 to 4096",
        environ={"SEAWALL_DISK_RING_ENTRIES": "3"},
    )
    refused("bench.rounds is 4 (flag --set): it must be a whole number from 5 to 1000", flags={"bench.rounds": 4})
    refused(
        "disk.backend is 'fast' (flag --set): it must be one of auto, resident, uring", flags={"disk.backend": "fast"}
    )


def test_a_wrong_value_is_reported_even_if_a_later_source_replaces_it() -> None:
    refused("environment", environ={"SEAWALL_BENCH_ROUNDS": "four"}, flags={"bench.rounds": 7})


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        load(flags={"bench.rounds": "x" * 10_000})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("sources", "match"),
    [
        ({"flags": {"disk.backed": 1}}, "unknown setting disk.backed (flag --set): did you mean disk.backend?"),
        ({"flags": {"x": 1}}, "unknown setting x (flag --set): `seawall config show` lists every setting"),
        (
            {"environ": {"SEAWALL_DISC_BACKEND": ""}},
            "(environment SEAWALL_DISC_BACKEND): did you mean SEAWALL_DISK_BACKEND?",
        ),
        ({"environ": {"SEAWALL_CONFG": ""}}, "did you mean SEAWALL_CONFIG?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(sources: dict[str, object], match: str) -> None:
    refused(match, **sources)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("\n[disk]\nbackend = 'fast'\n", "disk.backend is 'fast' (file {path}, line 3): it must be one of"),
        (
            "[bench]\nrounds=7\n[disk]\n backed = 1\n",
            "unknown setting disk.backed (file {path}, line 4): did you mean disk.ba",
        ),
        ("disk.backend = 'fast'\n", "(file {path}, line 1)"),
        ("[disc]\nbackend = 'auto'\n", "unknown section disc (file {path}, line 1): did you mean disk?"),
        ("disk = 3\n", "disk is 3 (file {path}, line 1): it must be a table of settings"),
        ("'disk'.backend = 'fast'\n", "disk.backend is 'fast' (file {path}): it must be"),
        ("[disk.backend]\nx = 1\n", "disk.backend is {{'x': 1}} (file {path}, line 1)"),
        ("[bench]\nrounds = 1979-05-27\n", "bench.rounds is datetime.date(1979, 5, 27) (file {path}, line 2)"),
        ("[disk\n", "the configuration file {path} is not valid TOML:"),
        ("[disk]\nbackend = 'auto'\nbackend = 'auto'\n", "{path} is not valid TOML:"),
        ("\udcff", "{path} is not valid TOML:"),
    ],
)
def test_a_fault_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "seawall.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    refused(match.format(path=path), path=str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    refused(f"cannot read the configuration file {tmp_path / 'none'}: No such file", path=str(tmp_path / "none"))
    refused(f"cannot read the configuration file {tmp_path}: Is a directory", environ={"SEAWALL_CONFIG": str(tmp_path)})


def test_a_section_built_in_code_is_checked_by_the_same_rules() -> None:
    assert DiskConfig(backend="uring").backend is DiskBackend.URING
    with pytest.raises(ConfigError, match=r"DiskConfig\.ring_entries is 3: it must be a power of two"):
        DiskConfig(ring_entries=3)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (":0", "0.0.0.0:0"),
        (" 127.0.0.1:1992 , [::1]:1992", "127.0.0.1:1992,[::1]:1992"),
        ("localhost:65535", "localhost:65535"),
    ],
)
def test_the_listen_setting_takes_one_or_several_addresses(given: str, read: str) -> None:
    assert load(flags={"server.listen": given}).config.server.listen == read


@pytest.mark.parametrize(
    "given", ["", "1992", "host:", "::1:5", "host:65536", "a:1,,b:2", "a b:1", ["a:1"], "a:1" + ",a:1" * 16]
)
def test_a_malformed_address_is_refused(given: object) -> None:
    refused("it must be host:port", flags={"server.listen": given})


@pytest.mark.parametrize("given", ["1MiB", 1, -1, "none"])
def test_a_memory_limit_is_zero_or_large_enough(given: object) -> None:
    refused("server.memory_limit is", flags={"server.memory_limit": given})
    assert load(flags={"server.memory_limit": "0"}).config.server.memory_limit == 0
    assert load(flags={"server.memory_limit": "2GiB"}).config.server.memory_limit == 2 << 30

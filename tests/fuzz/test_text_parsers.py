"""Arbitrary text into every parser of text: configuration, sizes, addresses, names, identifiers."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_mutation import mutate

from seawall import config
from seawall.api.watch_cursor import WatchCursor, encode_cursor, parse_cursor
from seawall.core import identifiers
from seawall.core.types import Seq, TopicEpoch, TopicId
from seawall.core.watches import WatchPosition
from seawall.errors import SeawallError
from seawall.io.network import sockets
from seawall.tasks.cron import parse_cron

Target = Callable[[bytes], None]


def typed_errors_only(parse: Callable[[str], object]) -> Target:
    def run(data: bytes) -> None:
        try:
            parse(data.decode("utf-8", "replace"))
        except SeawallError:
            return

    return run


def read_setting(text: str) -> None:
    key, _, value = text.partition("=")
    config.load(environ={}, flags={key: value})


def read_environment(text: str) -> None:
    name, _, value = text.partition("=")
    config.load(environ={name: value}, flags={})


TARGETS: dict[str, Target] = {
    "setting": typed_errors_only(read_setting),
    "environment": typed_errors_only(read_environment),
    "topic_name": typed_errors_only(identifiers.check_topic_name),
    "client_id": typed_errors_only(identifiers.parse_client_id),
    "unique_id": typed_errors_only(identifiers.parse_unique_id),
    "address": typed_errors_only(sockets.parse_address),
    "cron": typed_errors_only(parse_cron),
    "watch_cursor": typed_errors_only(parse_cursor),
}

_CURSOR = WatchCursor({"orders": WatchPosition(TopicEpoch(1), Seq(7))}, TopicId(9))

CORPUS: dict[str, list[bytes]] = {
    "setting": [b"disk.ring_entries=512", b"bench.seconds=250ms", b"disk.backend=uring", b"bench.directory=/x"],
    "environment": [b"SEAWALL_DISK_RING_ENTRIES=64", b"SEAWALL_BENCH_SECONDS=2.5", b"SEAWALL_BENCH_ROUNDS=7"],
    "topic_name": [b"events", b"a.b:c-d_e"],
    "client_id": [b"00000000000000ff", b"7fffffffffffffff"],
    "unique_id": [b"0123456789abcdef0123456789abcdef"],
    "address": [b"127.0.0.1:1992", b"[::1]:0", b"localhost:65535"],
    "cron": [b"0 7 * * mon-fri", b"*/5 9-17/2 1,15 jan-mar 0"],
    "watch_cursor": [encode_cursor(_CURSOR).encode()],
}


def test_every_target_has_a_corpus() -> None:
    assert TARGETS.keys() == CORPUS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_give_only_typed_errors(name: str) -> None:
    random_source = random.Random(f"seawall {name}")
    for data in [*CORPUS[name], b""]:
        TARGETS[name](data)
    for _ in range(300):
        TARGETS[name](mutate(random_source, random_source.choice(CORPUS[name])))


def test_any_bytes_as_a_configuration_file(tmp_path: Path) -> None:
    random_source = random.Random(5)
    valid = b'[disk]\nbackend = "uring"\nring_entries = 64\n[bench]\nseconds = "250ms"\n'
    file = tmp_path / "seawall.toml"
    refusals = []
    for _ in range(300):
        file.write_bytes(mutate(random_source, valid))
        try:
            config.load(file, environ={}, flags={})
        except SeawallError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert all("seawall.toml" in message for message in refusals)

"""`seawall serve`: the sources of its settings, and their precedence."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from seawall.cli import serve as module
from seawall.cli.main import seawall
from seawall.config import Config, ServerConfig
from seawall.kernels.runtime import jit
from seawall.server.node import NodeSettings


class Started:
    """The settings that the command would start a node with."""

    config: Config
    settings: NodeSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    seen = Started()

    async def run(config: Config, _data: object, settings: NodeSettings, *_: object) -> bool:
        seen.config, seen.settings = config, settings
        return True

    monkeypatch.setattr(module, "_run", run)
    return seen


@pytest.mark.parametrize("must_compile", [True, False])
def test_a_start_without_compiled_kernels_says_so(
    started: Started, monkeypatch: pytest.MonkeyPatch, must_compile: bool
) -> None:
    monkeypatch.setattr(jit, "must_compile", lambda: must_compile)
    done = CliRunner().invoke(seawall, ["serve"])
    assert ("compiles its kernels" in done.stderr) is must_compile
    assert started.config.server == ServerConfig()


def serve(*arguments: str, **environ: str) -> None:
    done = CliRunner().invoke(seawall, arguments, env=environ)
    assert done.exit_code == 0, done.output


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "seawall.toml"
    path.write_text(
        """
[server]
listen = "127.0.0.1:7000, [::1]:7001"
connections = 10
drain = "3s"
read_rate = "2MiB"
outbox_size = "4MiB"
stall = 30
v1_past_end = "empty"
[storage]
checkpoint_size = 1000000
"""
    )
    return str(path)


def test_the_defaults(started: Started) -> None:
    serve("serve")
    assert (started.settings.host, started.settings.port, started.settings.also) == ("127.0.0.1", 1992, ())
    assert started.config.server == ServerConfig()


@pytest.mark.parametrize("is_before", [True, False])
def test_a_file_may_be_given_before_or_after_the_command(started: Started, file: str, is_before: bool) -> None:
    serve(*(("--config", file, "serve") if is_before else ("serve", "--config", file)))
    own = started.settings
    assert (own.host, own.port, own.also) == ("127.0.0.1", 7000, (("::1", 7001),))
    assert (own.connections_max, own.past_end, own.bounds.outbox_size, own.bounds.stall_s) == (10, "empty", 4 << 20, 30)
    assert (started.config.server.drain, started.config.server.read_rate) == (3.0, 2 << 20)
    assert started.config.storage.checkpoint_size == 1_000_000


def test_later_sources_override_earlier_ones(started: Started, file: str) -> None:
    environ = {"SEAWALL_SERVER_CONNECTIONS": "20", "SEAWALL_SERVER_DRAIN": "4s", "SEAWALL_SERVER_STALL": "40"}
    serve("--set", "server.drain=5s", "--set", "server.stall=50", "serve", "--config", file, "--drain", "6", **environ)
    assert (started.settings.connections_max, started.config.server.drain) == (20, 6.0)
    assert started.settings.bounds.stall_s == 50


def test_options_of_the_command_override_a_file_given_before_it(started: Started, file: str) -> None:
    serve("--config", file, "serve", "--connections", "30", "--memory-limit", "1GiB", "--brokers", "3")
    assert (started.settings.connections_max, started.settings.port, started.settings.event_loops) == (30, 7000, 3)
    assert started.config.server.memory_limit == 1 << 30


def test_a_host_or_a_port_changes_the_first_address(started: Started, file: str) -> None:
    serve("serve", "--config", file, "--port", "0")
    assert (started.settings.host, started.settings.port, started.settings.also) == ("127.0.0.1", 0, (("::1", 7001),))
    serve("serve", "--host", "0.0.0.0")
    assert (started.settings.host, started.settings.port) == ("0.0.0.0", 1992)
    serve("serve", "--listen", ":0")
    assert (started.settings.host, started.settings.port) == ("0.0.0.0", 0)


def test_dev_uses_any_port_unless_one_is_given(started: Started, file: str) -> None:
    serve("serve", "--dev")
    assert started.settings.port == 0
    serve("serve", "--dev", "--port", "1992")
    assert started.settings.port == 1992
    serve("serve", "--dev", "--config", file)
    assert started.settings.port == 7000
    assert "seawall-" in started.config.fabric.directory


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--drain", "-1"), "server.drain is -1.0"),
        (("--connections", "0"), "server.connections is 0"),
        (("--brokers", "32"), "server.brokers is 32"),
        (("--listen", "nowhere"), "it must be host:port"),
        (("--memory-limit", "1MiB"), "server.memory_limit is"),
        (("--dev", "--data", "somewhere"), "omit --dev or --data"),
    ],
)
def test_invalid_settings_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    done = CliRunner().invoke(seawall, ["serve", *arguments])
    assert done.exit_code == 2
    assert problem in done.output

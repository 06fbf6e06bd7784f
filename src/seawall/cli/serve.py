"""`seawall serve`: run a server node in this process until a signal stops it.

Once the node listens, standard output shows its address. So does the run file, for programs: a JSON object with the
process id and the address, written when the node listens and removed after an orderly shutdown. Warnings, for instance
about low memory, go to standard error.

SIGTERM and SIGINT shut it down: no new connections, GOODBYE to the open ones, all requests in flight answered, written
and synced, then exit code 0. At the deadline, or on a second signal, the remaining connections are cut off: exit code
1, and no mark of an orderly shutdown, so the next start recovers the directory. Acked batches are in the log in any
case.

After a failed write or sync the node reports the failure and serves readers, read-only, until a signal stops it: exit
code 1.

The options are short forms of the settings `server.*`, and override file and environment as `--set` does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
from click.core import ParameterSource

from seawall.cli.data_directory import data_option
from seawall.cli.main import FLAGS_KEY
from seawall.cli.token_file import read_access
from seawall.config import Config, LoadedConfig, ServerConfig, load
from seawall.errors import ConfigError, SeawallError
from seawall.limits import CUT_OFF_S

if TYPE_CHECKING:
    from ssl import SSLContext

    from seawall.server.connection.access import Access
    from seawall.server.node import Node, NodeSettings

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Time that a shutdown may exceed its own deadline by before the process exits without waiting.
_SHUTDOWN_MARGIN_S: Final = 2 * CUT_OFF_S


@dataclass(frozen=True, slots=True)
class _Paths:
    """The paths of a node: its data, its run file, and a temporary directory to remove at the end."""

    data: Path
    run_file: Path
    temporary: Path | None

    def exit_now(self) -> NoReturn:
        """Exit this process without waiting for threads: they may wait for a disk that never responds."""
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
        sys.stdout.flush()
        os._exit(1)


@click.command()
@data_option
@click.option(
    "--config", "path", metavar="FILE", help="Read settings from this TOML file, as `seawall --config FILE serve` does."
)
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on; `:0` means every interface and a free port.")
@click.option("--host", help="Host to listen on; 0.0.0.0 means every interface.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0 means any free port.")
@click.option("--dev", is_flag=True, help="For trying out: use a temporary data directory and any free port.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Require a token from this file, which has one per line; `TOKEN write_only` may not read, `TOKEN "
    "read_rate=10MiB` may not read faster; `cn=NAME` instead of a token means client certificates with that name.",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False),
    help="Use TLS with this certificate or certificate chain (PEM).",
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Private key of --tls-cert (PEM).")
@click.option(
    "--tls-client-ca",
    type=click.Path(exists=True, dir_okay=False),
    help="Require a client certificate signed by one of these authorities (PEM), or a token of --token-file.",
)
@click.option("--brokers", type=int, help="Number of event loops that connections are distributed over.")
@click.option("--connections", type=int, help="Maximum number of connections.")
@click.option("--drain", type=float, help="Seconds for an orderly shutdown.")
@click.option("--memory-limit", help="Memory use at which writes are held, such as 2GiB.")
@click.option(
    "--run-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write process id and address to this file; by default beside the data directory: DIR.run.json.",
)
@click.pass_context
def serve(
    context: click.Context,
    /,
    data: Path,
    path: str | None,
    host: str | None,
    port: int | None,
    dev: bool,
    run_file: Path | None,
    **given: object,
) -> None:
    """Serve a data directory: LWP versions 1 and 2 on one port.

    \b
    Examples:
      seawall serve --data /var/lib/seawall --listen 0.0.0.0:1992
      seawall serve --config seawall.toml
      seawall serve --dev
      seawall serve --data data --tls-cert node.pem --tls-key node.key
    """
    from seawall.io.network.loops import loop_factory

    loaded = _loaded(context, path, given)
    config = loaded.config
    with ExitStack() as stack:
        # A start creates objects that stay: searching them for garbage would take up to a third of its time.
        gc.disable()
        stack.callback(gc.enable)
        temporary = None
        if dev:
            if context.get_parameter_source("data") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--dev uses a temporary data directory: omit --dev or --data")
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seawall-")))
            data = temporary / "data"
            port = 0 if port is None and loaded.origins["server.listen"] == "default" else port
            # In the temporary directory too, so that it is removed in any case.
            config = replace(config, fabric=replace(config.fabric, directory=str(temporary)))
        own = config.server
        access = read_access(own.token_file, own.read_rate, takes_certificates=bool(own.tls_client_ca))
        settings = _settings(config, host, port)
        paths = _Paths(data, run_file or data.with_name(f"{data.name}.run.json"), temporary)
        _warn_of_compiling()
        loop_name, make_loop = loop_factory()
        with asyncio.Runner(loop_factory=make_loop) as runner:
            is_drained = runner.run(_run(config, paths, settings, access, loop_name))
    if not is_drained:
        raise SystemExit(1)


def _loaded(context: click.Context, path: str | None, given: dict[str, object]) -> LoadedConfig:
    """The configuration, including the file and the options of this command."""
    flags = {f"server.{name}": value for name, value in given.items() if value is not None}
    if path is None and not flags:
        loaded = context.obj
        assert isinstance(loaded, LoadedConfig)
        return loaded
    if path is None and (parent := context.parent) is not None:
        path = parent.params.get("path")
    return load(path, os.environ, {**context.meta[FLAGS_KEY], **flags})


def _settings(config: Config, host: str | None, port: int | None) -> NodeSettings:
    """The node's settings from a configuration; `host` and `port`, if given, replace those of the first address."""
    from seawall.io.network.sockets import parse_address
    from seawall.server.connection.session import ConnectionLimits
    from seawall.server.node import NodeSettings

    own = config.server
    first, *others = [parse_address(text) for text in own.listen.split(",")]
    return NodeSettings(
        host or first.host,
        first.port if port is None else port,
        tuple((address.host, address.port) for address in others),
        connections_max=own.connections,
        event_loops=own.brokers,
        past_end=own.v1_past_end,
        bounds=ConnectionLimits(stall_s=own.stall, outbox_size=own.outbox_size, v1_idle_s=own.v1_idle or None),
        peer_memory=own.peer_memory,
        connection_memory=own.connection_memory,
        tls=_tls(own),
    )


async def _run(config: Config, paths: _Paths, settings: NodeSettings, access: Access, loop_name: str) -> bool:
    """Start the node, wait for a signal, and drain; True after an orderly shutdown."""
    from seawall.server.node import start_node

    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for each in _SIGNALS:
        loop.add_signal_handler(each, signals.put_nowait, each)
    node = await start_node(paths.data, settings, config=config, access=access, warn=_warn)
    _write_run_file(paths.run_file, node.address, config.storage.group)
    _warn_of_exposure(config, paths.data)
    # The objects that exist now are permanent: exclude them from later garbage collections.
    gc.collect()
    gc.freeze()
    gc.enable()
    loops = f"{len(node.event_loops)} brokers on {loop_name}" if len(node.event_loops) > 1 else loop_name
    where, how = " and ".join(node.addresses), f"{loops}; LWP 1 and 2{_secured(settings)}"
    click.echo(f"Seawall serves {paths.data} on {where} ({how}). Press Ctrl-C to stop.")
    if paths.temporary is not None:
        click.echo(_welcome(node.address))
    await _wait_for_signal(node, signals)
    drained = asyncio.ensure_future(node.drain(config.server.drain))
    second_signal = asyncio.ensure_future(signals.get())
    timeout_s = config.server.drain + _SHUTDOWN_MARGIN_S
    await asyncio.wait((drained, second_signal), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    if node.counts:
        counters = ", ".join(f"{cause} {count}" for cause, count in sorted(node.counts.items()))
        _warn(f"Seawall counters: {counters}.")
    if not drained.done():
        _warn("Seawall stops immediately: acked batches are in the log, and the next start recovers the directory.")
        paths.exit_now()
    second_signal.cancel()
    paths.run_file.unlink(missing_ok=True)
    if not drained.result():
        _warn(f"Seawall has stopped with {node.unanswered} unanswered batches: the next start recovers the directory.")
        paths.exit_now()
    if node.failure.done():
        _warn("Seawall has stopped after a failed write: the next start recovers the directory.")
        return False
    click.echo("Seawall has stopped.")
    return True


async def _wait_for_signal(node: Node, signals: asyncio.Queue[signal.Signals]) -> None:
    """Wait for a signal; print a warning if the node becomes read-only meanwhile."""
    received = asyncio.ensure_future(signals.get())
    await asyncio.wait((received, node.failure), return_when=asyncio.FIRST_COMPLETED)
    if not received.done():
        _warn(_read_only_message(node.failure.result()))
    number = await received
    click.echo(f"Seawall received {number.name} and stops; open connections: {node.connection_count}.")


def _read_only_message(failure: BaseException) -> str:
    """The warning that the node is read-only now; with the traceback if the reason is a bug."""
    advice = "reads continue. Repair the disk and restart the server"
    if isinstance(failure, (SeawallError, OSError)):
        return f"seawall: read-only, because a write failed ({failure}): {advice}"
    stack = "".join(traceback.format_exception(failure))
    return f"{stack}seawall: read-only, because a write failed ({failure!r}, a bug in Seawall): {advice}"


def _warn(text: str) -> None:
    """Write a line to standard error; ignore errors, since that may be a file on the failed disk."""
    with suppress(OSError):
        click.echo(text, err=True)


def _welcome(address: str) -> str:
    """Examples to try next, ready to be pasted."""
    url = f"seawall://{address}"
    return f"""
The data directory is temporary: it is deleted when the server stops. In another terminal, try:

  seq 1 1000 | seawall pub numbers --create --url {url}
  seawall read numbers --from 999 --url {url}
  seawall sub numbers --from latest --follow --url {url}

And from Python:

  import seawall
  with seawall.connect("{url}") as log:
      print(log.publish("numbers", [b"1001", b"1002"]).seqs)
"""


def _write_run_file(path: Path, address: str, group: str) -> None:
    """Write the run file atomically: a new file, then a rename, since others may place links in the directory."""
    from seawall.io.disk.files import OsFiles, write_all
    from seawall.io.process.permissions import group_id

    fresh = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")
    file = OsFiles(group=group_id(group)).open(str(fresh), exclusive=True)
    try:
        write_all(file, [json.dumps({"pid": os.getpid(), "lwp": address}).encode() + b"\n"], 0)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    finally:
        file.close()


def _warn_of_compiling() -> None:
    """Say why the first answers take long, if they will."""
    from seawall.kernels.runtime.jit import must_compile

    if must_compile():
        _warn(
            "Seawall compiles its kernels for this machine, while the first requests wait: half a minute, once. "
            "`seawall doctor --warm` compiles them in advance."
        )


def _warn_of_exposure(config: Config, data: Path) -> None:
    """Warn about files that other users of this machine can access; their modes are not changed."""
    from seawall.io.process.permissions import exposure

    if found := exposure(str(data), is_for_group=bool(config.storage.group)):
        _warn(f"seawall: {found}. Restrict access: chmod -R go-rwx {data}")
    for path in filter(None, (config.server.token_file, config.server.tls_key)):
        if found := exposure(path, is_for_group=True):
            _warn(f"seawall: {found}, and so everything that it protects. Restrict access: chmod o-rwx,g-w {path}")


def _secured(settings: NodeSettings) -> str:
    return "" if settings.tls is None else " over TLS"


def _tls(own: ServerConfig) -> SSLContext | None:
    """The TLS context of the server, or None if connections are not encrypted."""
    from seawall.io.network.tls import server_context

    if not own.tls_cert and not own.tls_key:
        if own.tls_client_ca:
            raise ConfigError("server.tls_client_ca needs TLS: set server.tls_cert and server.tls_key, too")
        return None
    if not own.tls_cert or not own.tls_key:
        raise ConfigError("TLS needs both a certificate and its key: server.tls_cert and server.tls_key")
    authorities = Path(own.tls_client_ca) if own.tls_client_ca else None
    return server_context(Path(own.tls_cert), Path(own.tls_key), authorities)

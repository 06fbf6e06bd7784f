"""`seawall serve`: a node in this process, until it is told to end.

Standard output says where it listens, once it does; so does the run file, for programs: a JSON object with the process
and the address. It is written when the node listens and removed when it has ended in order. Standard error says what
people should know: memory that gets short, and what became of it.

SIGTERM and SIGINT end it: no new connections, GOODBYE to those that are there, everything under way answered, written
and synced, then exit code 0. Who is left at the deadline is cut off, and a second signal does not wait for it: exit
code 1, and no mark of an orderly end, so that the next start recovers the directory. What was acked is in the log then,
too.

After a failed write or sync it stays up read-only, says so, and serves readers until a signal ends it: exit code 1.

Its options are short forms of settings `server.*`, and win over file and environment as `--set` does.
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
#: How long an end that was announced may take beyond its own bounds before the process just ends.
_PATIENCE_S: Final = 2 * CUT_OFF_S


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node keeps things: its data, its run file, and what is removed at the end."""

    data: Path
    run_file: Path
    temporary: Path | None

    def leave(self) -> NoReturn:
        """End this process and wait for nothing: a disk may never come back, and threads wait for it."""
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
        sys.stdout.flush()
        os._exit(1)


@click.command()
@data_option
@click.option("--config", "path", metavar="FILE", help="Read this TOML file, as `seawall --config FILE serve` does.")
@click.option("--listen", metavar="HOST:PORT", help="Listen here; `:0` is every interface and any free port.")
@click.option("--host", help="Listen here; 0.0.0.0 is every interface.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen on this port; 0 picks a free one.")
@click.option("--dev", is_flag=True, help="For trying out: a new directory that goes at the end, and any free port.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Let in only who shows one of these tokens, a line each; `TOKEN write_only` may not read, "
    "`TOKEN read_rate=10MiB` no faster; `cn=NAME` in place of a token is who has a client certificate with that name.",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False),
    help="Encrypt with this certificate, or chain of them (PEM).",
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="The key of --tls-cert (PEM).")
@click.option(
    "--tls-client-ca",
    type=click.Path(exists=True, dir_okay=False),
    help="Let in only clients with a certificate that these authorities have signed (PEM), or with a token of "
    "--token-file.",
)
@click.option("--brokers", type=int, help="Event loops that connections are dealt to.")
@click.option("--connections", type=int, help="Connections at most.")
@click.option("--drain", type=float, help="Seconds to end in order.")
@click.option("--memory-limit", help="Memory it may take before writes are held, such as 2GiB.")
@click.option(
    "--run-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Say here where the node listens; by default beside the data directory: DIR.run.json.",
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
    with ExitStack() as ends:
        temporary = None
        if dev:
            if context.get_parameter_source("data") is ParameterSource.COMMANDLINE:
                raise click.UsageError("--dev serves a new directory that goes at the end: leave it or --data out")
            temporary = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="seawall-")))
            data = temporary / "data"
            port = 0 if port is None and loaded.origins["server.listen"] == "default" else port
            # Beside the data, so that nothing is left of it whatever happens.
            config = replace(config, fabric=replace(config.fabric, directory=str(temporary)))
        own = config.server
        access = read_access(own.token_file, own.read_rate, takes_certificates=bool(own.tls_client_ca))
        settings = _settings(config, host, port)
        place = _Place(data, run_file or data.with_name(f"{data.name}.run.json"), temporary)
        loop_name, make_loop = loop_factory()
        with asyncio.Runner(loop_factory=make_loop) as runner:
            is_drained = runner.run(_run(config, place, settings, access, loop_name))
    if not is_drained:
        raise SystemExit(1)


def _loaded(context: click.Context, path: str | None, given: dict[str, object]) -> LoadedConfig:
    """The configuration, with the file and the options of this command in it."""
    flags = {f"server.{name}": value for name, value in given.items() if value is not None}
    if path is None and not flags:
        loaded = context.obj
        assert isinstance(loaded, LoadedConfig)
        return loaded
    if path is None and (parent := context.parent) is not None:
        path = parent.params.get("path")
    return load(path, os.environ, {**context.meta[FLAGS_KEY], **flags})


def _settings(config: Config, host: str | None, port: int | None) -> NodeSettings:
    """What a node needs of a configuration; a host or a port that is given is the first address's."""
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
        brokers=own.brokers,
        past_end=own.v1_past_end,
        bounds=ConnectionLimits(stall_s=own.stall, outbox_size=own.outbox_size, v1_idle_s=own.v1_idle or None),
        peer_memory=own.peer_memory,
        connection_memory=own.connection_memory,
        tls=_tls(own),
    )


async def _run(config: Config, place: _Place, settings: NodeSettings, access: Access, loop_name: str) -> bool:
    """Start, tell where, wait to be told to end, drain; whether it ended in order."""
    from seawall.server.node import start_node

    loop = asyncio.get_running_loop()
    told: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for each in _SIGNALS:
        loop.add_signal_handler(each, told.put_nowait, each)
    node = await start_node(place.data, settings, config=config, access=access, tell=_warn)
    _write_run_file(place.run_file, node.address, config.storage.group)
    _warn_of_exposure(config, place.data)
    # What is there now stays: no collection has to look at it again.
    gc.collect()
    gc.freeze()
    loops = f"{len(node.brokers)} brokers on {loop_name}" if len(node.brokers) > 1 else loop_name
    where, how = " and ".join(node.addresses), f"{loops}; LWP 1 and 2{_secured(settings)}"
    click.echo(f"Seawall serves {place.data} on {where} ({how}). Stop it with Ctrl-C.")
    if place.temporary is not None:
        click.echo(_welcome(node.address))
    await _until_notified(node, told)
    ending = asyncio.ensure_future(node.drain(config.server.drain))
    again = asyncio.ensure_future(told.get())
    patience_s = config.server.drain + _PATIENCE_S
    await asyncio.wait((ending, again), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    if node.counts:
        counted = ", ".join(f"{cause} {count}" for cause, count in sorted(node.counts.items()))
        _warn(f"Seawall has counted: {counted}.")
    if not ending.done():
        _warn("Seawall ends at once: what was acked is in the log, and the next start recovers it.")
        place.leave()
    again.cancel()
    place.run_file.unlink(missing_ok=True)
    if not ending.result():
        _warn(f"Seawall has ended, {node.unanswered} batches were not answered: the next start recovers the directory.")
        place.leave()
    if node.failure.done():
        _warn("Seawall has ended after a failed write: the next start recovers the directory.")
        return False
    click.echo("Seawall has ended in order.")
    return True


async def _until_notified(node: Node, told: asyncio.Queue[signal.Signals]) -> None:
    """Wait for a signal, and say meanwhile when the node becomes read-only."""
    signalled = asyncio.ensure_future(told.get())
    await asyncio.wait((signalled, node.failure), return_when=asyncio.FIRST_COMPLETED)
    if not signalled.done():
        _warn(_why(node.failure.result()))
    number = await signalled
    click.echo(f"Seawall got {number.name} and ends: {node.connection_count} connections.")


def _why(failure: BaseException) -> str:
    """What standard error says when the node becomes read-only; for a defect, with the traceback."""
    goes_on = "readers go on. Repair the disk, and start it again"
    if isinstance(failure, (SeawallError, OSError)):
        return f"seawall: read-only, because writing failed ({failure}): {goes_on}"
    where = "".join(traceback.format_exception(failure))
    return f"{where}seawall: read-only, because writing failed ({failure!r}, a defect of Seawall): {goes_on}"


def _warn(text: str) -> None:
    """Write a line to standard error, unless that is on a disk that takes nothing either."""
    with suppress(OSError):
        click.echo(text, err=True)


def _welcome(address: str) -> str:
    """What to try next: commands that work as they stand."""
    url = f"seawall://{address}"
    return f"""
It keeps what you write until it ends. In another terminal, try:

  seq 1 1000 | seawall pub numbers --create --url {url}
  seawall read numbers --from 999 --url {url}
  seawall sub numbers --from latest --follow --url {url}

And from Python:

  import seawall
  with seawall.connect("{url}") as log:
      print(log.publish("numbers", [b"1001", b"1002"]).seqs)
"""


def _write_run_file(path: Path, address: str, group: str) -> None:
    """Whole or not at all, under a new name first: the folder may be one in which others can put links."""
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


def _warn_of_exposure(config: Config, data: Path) -> None:
    """Say which files other users of this machine can reach though they should not; their modes are not changed."""
    from seawall.io.process.permissions import exposure

    if found := exposure(str(data), is_for_group=bool(config.storage.group)):
        _warn(f"seawall: {found}. Keep others out: chmod -R go-rwx {data}")
    for path in filter(None, (config.server.token_file, config.server.tls_key)):
        if found := exposure(path, is_for_group=True):
            _warn(f"seawall: {found}, and with it everything that it protects. Keep others out: chmod o-rwx,g-w {path}")


def _secured(settings: NodeSettings) -> str:
    return "" if settings.tls is None else " over TLS"


def _tls(own: ServerConfig) -> SSLContext | None:
    """How connections are encrypted, if they are."""
    from seawall.io.network.tls import server_context

    if not own.tls_cert and not own.tls_key:
        if own.tls_client_ca:
            raise ConfigError("server.tls_client_ca needs TLS: give server.tls_cert and server.tls_key, too")
        return None
    if not own.tls_cert or not own.tls_key:
        raise ConfigError("TLS needs both a certificate and its key: server.tls_cert and server.tls_key")
    authorities = Path(own.tls_client_ca) if own.tls_client_ca else None
    return server_context(Path(own.tls_cert), Path(own.tls_key), authorities)

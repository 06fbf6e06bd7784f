"""`seawall serve`: a node in this process, until it is told to end.

Standard output says where it listens, once it does; so does the run file, for programs: a JSON object with the process
and the address. It is written when the node listens and removed when it has ended in order.

SIGTERM and SIGINT end it: no new connections, GOODBYE to those that are there, everything under way answered, then exit
code 0. After `--drain` seconds, or at a second signal, it ends at once with 1: what was acked is in the log then, too.
It ends with 1 as well when the disk fails it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from seawall.cli.data_directory import data_option
from seawall.errors import InvalidInputError
from seawall.limits import CONNECTIONS_MAX, LWP_PORT, NODE_DRAIN_S

if TYPE_CHECKING:
    from ssl import SSLContext

    from seawall.config import LoadedConfig
    from seawall.server.access import Access
    from seawall.server.node import Node, NodeSettings

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@click.command()
@data_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen here; 0.0.0.0 is every interface.")
@click.option("--port", type=click.IntRange(0, 65_535), default=LWP_PORT, show_default=True, help="0 picks a free one.")
@click.option("--dev", is_flag=True, help="For trying out: a new directory that goes at the end, and any free port.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Let in only who shows one of these tokens, a line each; `TOKEN write_only` may not read.",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Encrypt with this certificate, or chain of them (PEM).",
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The key of --tls-cert (PEM)."
)
@click.option(
    "--connections", type=click.IntRange(min=1), default=CONNECTIONS_MAX, show_default=True, help="Connections at most."
)
@click.option(
    "--drain", type=click.FloatRange(min=0), default=NODE_DRAIN_S, show_default=True, help="Seconds to end in order."
)
@click.option(
    "--run-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Say here where the node listens; by default beside the data directory: DIR.run.json.",
)
@click.pass_obj
def serve(
    loaded: LoadedConfig,
    data: Path,
    host: str,
    port: int,
    dev: bool,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    connections: int,
    drain: float,
    run_file: Path | None,
) -> None:
    """Serve a data directory: LWP versions 1 and 2 on one port.

    \b
    Examples:
      seawall serve --data /var/lib/seawall --host 0.0.0.0
      seawall serve --dev
      seawall serve --data data --tls-cert node.pem --tls-key node.key
    """
    from seawall.io.loops import loop_factory
    from seawall.server.node import NodeSettings

    with ExitStack() as ends:
        if dev:
            data = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="seawall-"))) / "data"
            port = 0 if port == LWP_PORT else port
        settings = NodeSettings(host, port, connections, tls=_tls(tls_cert, tls_key))
        access = _access(token_file)
        place = run_file or data.with_name(f"{data.name}.run.json")
        loop_name, make_loop = loop_factory()
        with asyncio.Runner(loop_factory=make_loop) as runner:
            is_drained = runner.run(_run(loaded, data, settings, access, place, drain, loop_name))
    if not is_drained:
        raise SystemExit(1)


async def _run(
    loaded: LoadedConfig,
    data: Path,
    settings: NodeSettings,
    access: Access,
    run_file: Path,
    drain_s: float,
    loop_name: str,
) -> bool:
    """Start, tell where, wait to be told to end, drain; whether it ended in order."""
    from seawall.server.node import start_node

    loop = asyncio.get_running_loop()
    told: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for each in _SIGNALS:
        loop.add_signal_handler(each, told.put_nowait, each)
    node = await start_node(data, settings, config=loaded.config, access=access)
    _write_run_file(run_file, node.address)
    # What is there now stays: no collection has to look at it again.
    gc.collect()
    gc.freeze()
    click.echo(
        f"Seawall serves {data} on {node.address} ({loop_name}; LWP 1 and 2{_secured(settings)}). Stop it with Ctrl-C."
    )
    is_ordered = await _until_told(node, told)
    ending = asyncio.ensure_future(node.drain(drain_s))
    again = asyncio.ensure_future(told.get())
    await asyncio.wait((ending, again), return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        click.echo("Seawall ends at once: what was acked is in the log.", err=True)
        # Closing in order is what a second signal does not want to wait for.
        os._exit(1)
    again.cancel()
    is_drained = ending.result() and is_ordered
    run_file.unlink(missing_ok=True)
    click.echo("Seawall has ended in order." if is_drained else "Seawall has ended, not everything was answered.")
    return is_drained


async def _until_told(node: Node, told: asyncio.Queue[signal.Signals]) -> bool:
    """Wait for a signal, or for the end of all writing; whether it was a signal."""
    signalled = asyncio.ensure_future(told.get())
    await asyncio.wait((signalled, node.failure), return_when=asyncio.FIRST_COMPLETED)
    if signalled.done():
        click.echo(f"Seawall got {signalled.result().name} and ends: {node.connection_count} connections.")
        return True
    signalled.cancel()
    click.echo(f"seawall: nothing can be written any more ({node.failure.result()}): it ends", err=True)
    return False


def _write_run_file(path: Path, address: str) -> None:
    """Whole or not at all: whoever waits for the file reads it at once."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps({"pid": os.getpid(), "lwp": address}) + "\n", encoding="utf-8")
    fresh.replace(path)


def _secured(settings: NodeSettings) -> str:
    return "" if settings.tls is None else " over TLS"


def _tls(certificate: Path | None, key: Path | None) -> SSLContext | None:
    """How connections are encrypted, if they are."""
    from seawall.io.tls import server_context

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise click.UsageError("TLS needs both: --tls-cert and --tls-key.")
    return server_context(certificate, key)


def _access(token_file: Path | None) -> Access:
    """Who may come in, by the lines of a file."""
    from seawall.server.access import Access, Right

    if token_file is None:
        return Access()
    tokens: dict[str, Right] = {}
    for number, line in enumerate(token_file.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            right = Right.ALL if len(words) == 1 else Right(*words[1:])
        except (ValueError, TypeError) as error:
            rights = " or ".join(each.value for each in Right)
            raise InvalidInputError(f"{token_file}, line {number}: write TOKEN, or TOKEN {rights}") from error
        tokens[words[0]] = right
    if not tokens:
        raise InvalidInputError(f"{token_file} has no token in it: nobody could come in")
    return Access(tokens)

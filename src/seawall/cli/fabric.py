"""`seawall fabric`: show the shared memory of a pod: its layout and its current state.

Neither command changes anything; a running pod is not disturbed.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seawall.cli.data_directory import data_option, json_option, print_json, require_data
from seawall.cli.doctor.checks import size_text
from seawall.config import LoadedConfig
from seawall.errors import NotFoundError

if TYPE_CHECKING:
    from seawall.fabric.inspect import FabricReport
    from seawall.fabric.layout import FabricLayout
    from seawall.fabric.mapping import Fabric
    from seawall.wire.format.fields import JsonValue


@click.group()
def fabric() -> None:
    """Show the shared memory of a pod.

    \b
    Example:
      seawall fabric layout --full
    """


@fabric.command()
@click.option("--full", is_flag=True, help="Use the sizes of a 512 GiB memory module instead of the configured ones.")
@json_option
@click.pass_obj
def layout(loaded: LoadedConfig, full: bool, as_json: bool) -> None:
    """Print the layout that results from the settings `fabric.*`, without creating a fabric.

    \b
    Example:
      seawall --set fabric.brokers=4 fabric layout --json
    """
    from seawall.fabric.layout import FabricLayout, FabricSizes, full_size

    made = FabricLayout.of(full_size() if full else FabricSizes.of(loaded.config.fabric))
    if as_json:
        print_json({"size": made.size, "regions": _region_rows(made)})
    else:
        _print_regions(made)


@fabric.command()
@click.argument("path", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@data_option
@json_option
def inspect(path: Path | None, data: Path, as_json: bool) -> None:
    """Show the fabric of a data directory, or the one in the file PATH: regions, frontiers, rings, checkpoints.

    The command writes nothing and takes no lock. A running pod continues, so its state may change between two lines.

    \b
    Example:
      seawall fabric inspect --data seawall-data --json
    """
    from seawall.fabric.inspect import report
    from seawall.fabric.mapping import Fabric
    from seawall.io.process.clocks import OsClock
    from seawall.io.process.shared_memory import OsSharedMemory

    opened = Fabric.open_read_only(OsSharedMemory(), str(path or _fabric_of(data)))
    try:
        state = report(opened, OsClock().monotonic_ns())
    finally:
        opened.close()
    if as_json:
        document = {**_header(opened), "size": opened.layout.size, "regions": _region_rows(opened.layout)}
        print_json({**document, **asdict(state)})
        return
    click.echo("\n".join(f"{name:12}  {value}" for name, value in _header(opened).items()))
    click.echo()
    _print_regions(opened.layout)
    click.echo()
    _print_report(state)


def _fabric_of(data: Path) -> str:
    from seawall.fabric.naming import recorded_fabric
    from seawall.io.disk.files import OsFiles

    require_data(data)
    files = OsFiles()
    path = recorded_fabric(files, str(data))
    if path is None or not files.exists(path):
        raise NotFoundError(f"{data} is not open with brokers ({path or 'a fabric'} does not exist)")
    return path


def _header(fabric: Fabric) -> dict[str, JsonValue]:
    identity = fabric.header.identity
    return {
        "path": fabric.path,
        "boot_id": identity.boot_id.hex(),
        "directory_id": identity.directory_id.hex(),
        "created_ns": fabric.header.created_ns,
    }


def _print_report(state: FabricReport) -> None:
    control = state.control
    click.echo(
        f"control       term {control.term}, leader {control.leader}, lease until {control.lease_ns} ns, "
        f"{control.broker_count} brokers, mask {control.broker_mask:#x}"
    )
    click.echo(f"frontiers     durable {control.durable}, committed {control.committed}, ordered {control.ordered}")
    for each in state.brokers:
        click.echo(
            f"broker {each.broker:<5}  completed {each.completed}, claimed {each.claimed}, pending {each.pending} of "
            f"{each.entries} ({each.pending / each.entries:.0%}), ready {each.ready}, decided {each.decided}, "
            f"{each.blog_claimed} bytes claimed"
        )
    for replica in state.replicas:
        age = "never seen" if replica.age_ns is None else f"seen {replica.age_ns / 1e9:.1f} s ago"
        click.echo(f"replica {replica.replica:<4}  durable {replica.durable}, view {replica.view}, {age}")
    for checkpoint in state.checkpoints:
        click.echo(
            f"checkpoint {checkpoint.slot}  generation {checkpoint.generation}, position {checkpoint.position}, "
            f"term {checkpoint.term}, {checkpoint.clients} clients, {checkpoint.topics} topics"
        )


def _region_rows(layout: FabricLayout) -> list[JsonValue]:
    return [
        {
            "region": region.name,
            "at": region.at,
            "size": region.size,
            "count": region.count,
            "entry_size": region.entry_size,
            "writer": region.writer,
        }
        for region in layout.regions()
    ]


def _print_regions(layout: FabricLayout) -> None:
    click.echo(f"{'at':>14}  {'bytes':>14}  {'region':17}  {'count':>10}  {'of bytes':>11}  writer")
    for region in layout.regions():
        click.echo(
            f"{region.at:#14x}  {region.size:14}  {region.name:17}  {region.count:10}  {region.entry_size:11}  "
            f"{region.writer}"
        )
    click.echo(f"{layout.size:#14x}  {layout.size:14}  all: {size_text(layout.size)}")

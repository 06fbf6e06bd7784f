"""`seawall router`: create, list, describe and delete the routers of a data directory or of a server.

Results go to standard output, as a table or, with `--json`, as JSON with every setting. Listing and describing take no
lock, so another process may be writing; the others take it. Deleting a router deletes no records.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seawall.cli.data_directory import json_option, print_json
from seawall.cli.log_location import location_options, open_readable_log, open_writable_log
from seawall.core.routers import Guarantee

if TYPE_CHECKING:
    from seawall.core.routers import RouterInfo
    from seawall.wire.format.fields import JsonValue


@click.group()
def router() -> None:
    """Create, list, describe and delete routers, which copy records from one topic to another.

    \b
    Example:
      seawall router create orders-audit orders audit
    """


@router.command()
@click.argument("name")
@click.argument("source")
@click.argument("dest")
@click.option("--tag", metavar="TAG", help="Copy only records with this tag.")
@click.option("--tag-prefix", metavar="TEXT", help="Copy only records whose tag begins with this text.")
@click.option("--node", metavar="NODE", help="Copy only records from this node.")
@click.option("--drop-node", is_flag=True, help="Copy records without their node.")
@click.option("--drop-tag", is_flag=True, help="Copy records without their tag.")
@click.option("--no-create", is_flag=True, help="Fail if the topic DEST does not exist.")
@click.option("--allow-cycle", is_flag=True, help="Allow routers to form a loop.")
@click.option(
    "--guarantee",
    type=click.Choice([each.value for each in Guarantee]),
    default=Guarantee.AT_LEAST_ONCE.value,
    show_default=True,
    help="What the router promises; copies are exactly once under both.",
)
@location_options
@json_option
def create(
    name: str,
    source: str,
    dest: str,
    tag: str | None,
    tag_prefix: str | None,
    node: str | None,
    drop_node: bool,
    drop_tag: bool,
    no_create: bool,
    allow_cycle: bool,
    guarantee: str,
    data: Path,
    as_json: bool,
) -> None:
    """Create the router NAME, which copies what is published to SOURCE from now on to DEST.

    If there is a router of this name with the same topics, its settings change, and it continues where it is.

    \b
    Examples:
      seawall router create orders-audit orders audit
      seawall router create errors events errors --tag-prefix error. --drop-node
    """
    with open_writable_log(data) as log:
        info = log.create_router(
            name,
            source,
            dest,
            tag=tag,
            tag_prefix=tag_prefix,
            node=node,
            preserve_node=not drop_node,
            preserve_tag=not drop_tag,
            create_dest=not no_create,
            allow_cycle=allow_cycle,
            guarantee=guarantee,
        )
    _show(info, as_json, f"{name} copies {source} to {dest}")


@router.command(name="list")
@location_options
@json_option
def list_routers(data: Path, as_json: bool) -> None:
    """List all routers.

    \b
    Example:
      seawall router list --json
    """
    with open_readable_log(data) as view:
        infos = view.routers()
    if as_json:
        print_json([_as_json(info) for info in infos])
        return
    width = max((len(info.name) for info in infos), default=0)
    for info in infos:
        blocked = "" if info.blocked is None else "  blocked"
        click.echo(f"{info.name:{width}}  {info.source} to {info.dest}  {info.forwarded} copied{blocked}")


@router.command()
@click.argument("name")
@location_options
@json_option
def describe(name: str, data: Path, as_json: bool) -> None:
    """Show the topics, the settings and the progress of the router NAME.

    \b
    Example:
      seawall router describe orders-audit
    """
    with open_readable_log(data) as view:
        info = view.describe_router(name)
    rows = _as_json(info)
    width = max(map(len, rows))
    lines = (f"{key:{width}}  {value if isinstance(value, str) else json.dumps(value)}" for key, value in rows.items())
    _show(info, as_json, "\n".join(lines))


@router.command()
@click.argument("name")
@location_options
@json_option
def delete(name: str, data: Path, as_json: bool) -> None:
    """Delete the router NAME. Its copies stay.

    \b
    Example:
      seawall router delete orders-audit
    """
    with open_writable_log(data) as log:
        info = log.describe_router(name)
        log.delete_router(name)
    _show(info, as_json, f"deleted {name}")


def _show(info: RouterInfo, as_json: bool, text: str) -> None:
    if as_json:
        print_json(_as_json(info))
    else:
        click.echo(text)


def _as_json(info: RouterInfo) -> dict[str, JsonValue]:
    from seawall.wire.lwp2.routers import router_document

    return router_document(info)

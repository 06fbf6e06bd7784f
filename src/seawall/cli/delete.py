"""`seawall delete`: delete records of a topic, below a seq, by tag, or both; whole topics go by `seawall topic delete`.

Readers are not told: deleted records are simply not there any more. What is deleted is durable before the command
says so. It asks first, unless `--yes` is given.
"""

from __future__ import annotations

from pathlib import Path

import click

from seawall.cli.data_directory import json_option, print_json
from seawall.cli.log_place import open_place, place_options


@click.command()
@click.argument("topic")
@click.option("--before", "before_seq", type=click.IntRange(min=1), metavar="SEQ", help="Only records below this seq.")
@click.option("--tag", metavar="T", help="Only records with this tag.")
@click.option("--tag-prefix", metavar="P", help="Only records with a tag that begins so.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
def delete(
    topic: str,
    before_seq: int | None,
    tag: str | None,
    tag_prefix: str | None,
    yes: bool,
    data: Path,
    as_json: bool,
) -> None:
    """Delete records of TOPIC: those that fit all that is given.

    \b
    Examples:
      seawall delete events --before 1000000
      seawall delete events --tag customer-17 --yes
    """
    if before_seq is None and tag is None and tag_prefix is None:
        raise click.UsageError("Say which records: --before, --tag or --tag-prefix. All: seawall topic delete.")
    if tag is not None and tag_prefix is not None:
        raise click.UsageError("Give --tag or --tag-prefix, not both.")
    with open_place(data) as log:
        log.topic_named(topic)
        if not yes:
            which = _which(before_seq, tag, tag_prefix)
            click.confirm(f"Delete the records of {topic} {which} for ever?", abort=True, err=True)
        count = log.delete(topic, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)
    if as_json:
        print_json({"topic": topic, "deleted": count})
    else:
        click.echo(f"deleted {count} records of {topic}")


def _which(before_seq: int | None, tag: str | None, tag_prefix: str | None) -> str:
    parts = []
    if before_seq is not None:
        parts.append(f"below seq {before_seq}")
    if tag is not None:
        parts.append(f"with the tag {tag!r}")
    if tag_prefix is not None:
        parts.append(f"with a tag that begins with {tag_prefix!r}")
    return " and ".join(parts)

"""`seawall delete`: delete records of a topic, below a seq, by tag, or both; `seawall topic delete` deletes topics.

Readers are not notified: they simply no longer see deleted records. The delete is durable before the command reports
it. The command asks for confirmation, unless `--yes` is given.
"""

from __future__ import annotations

from pathlib import Path

import click

from seawall.cli.data_directory import json_option, print_json
from seawall.cli.log_location import location_options, open_writable_log


@click.command()
@click.argument("topic")
@click.option("--before", "before_seq", type=click.IntRange(min=1), metavar="SEQ", help="Only records below this seq.")
@click.option("--tag", metavar="TAG", help="Only records with this tag.")
@click.option("--tag-prefix", metavar="PREFIX", help="Only records with a tag that starts with PREFIX.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@location_options
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
    """Delete the records of TOPIC that match all given options.

    \b
    Examples:
      seawall delete events --before 1000000
      seawall delete events --tag customer-17 --yes
    """
    if before_seq is None and tag is None and tag_prefix is None:
        raise click.UsageError("Select records with --before, --tag or --tag-prefix; for all: seawall topic delete.")
    if tag is not None and tag_prefix is not None:
        raise click.UsageError("Use --tag or --tag-prefix, not both.")
    with open_writable_log(data) as log:
        log.topic_named(topic)
        if not yes:
            condition = _condition(before_seq, tag, tag_prefix)
            click.confirm(f"Permanently delete the records of {topic} {condition}?", abort=True, err=True)
        count = log.delete(topic, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)
    if as_json:
        print_json({"topic": topic, "deleted": count})
    else:
        click.echo(f"deleted {count} records of {topic}")


def _condition(before_seq: int | None, tag: str | None, tag_prefix: str | None) -> str:
    parts = []
    if before_seq is not None:
        parts.append(f"below seq {before_seq}")
    if tag is not None:
        parts.append(f"with the tag {tag!r}")
    if tag_prefix is not None:
        parts.append(f"with a tag that starts with {tag_prefix!r}")
    return " and ".join(parts)

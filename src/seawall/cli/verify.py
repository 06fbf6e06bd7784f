"""`seawall verify`: read a whole data directory and report all damage. Nothing is changed.

Each damage is a line on standard output with its file, bytes, seqs and what to do about it. Notes that are not damage
go to standard error. The exit code is 0 if everything is sound, 1 if anything is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from seawall.cli.data_directory import data_option, json_option, print_json

if TYPE_CHECKING:
    from seawall.storage.findings import Finding, Totals
    from seawall.wire.format.fields import JsonValue


@click.command()
@data_option
@json_option
def verify(data: Path, as_json: bool) -> None:
    """Read a whole data directory and report all damage.

    Nothing is changed or repaired. The directory must not be open in another process; that process can verify it itself
    (`log.verify()`). A copy of the directory can be verified at any time.

    \b
    Example:
      seawall verify --data backup/seawall-data
    """
    from seawall.engine.api.verify import verification
    from seawall.io.disk.files import OsFiles
    from seawall.io.process.clocks import OsClock
    from seawall.storage.read_only import open_for_reading

    files, clock = OsFiles(), OsClock()
    begun_ns = clock.monotonic_ns()
    with open_for_reading(files, str(data)) as opened:
        running = verification(files, opened)
        for finding in running.run():
            if as_json:
                print_json(_as_json(finding))
            else:
                click.echo(_as_text(finding))
    totals = running.totals
    for note in totals.notes:
        click.echo(f"note: {note}", err=True)
    _summarize(totals, (clock.monotonic_ns() - begun_ns) / 1e9, as_json)
    if totals.damage_count:
        raise SystemExit(1)


def _summarize(totals: Totals, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "damages": totals.damage_count,
                "files": totals.file_count,
                "bytes": totals.byte_count,
                "logged_batches": totals.logged_batches,
                "batches": totals.batch_count,
                "records": totals.record_count,
                "seconds": seconds,
            }
        )
        return
    verdict = f"{totals.damage_count} damaged" if totals.damage_count else "sound"
    click.echo(
        f"{verdict}: {totals.file_count} files, {totals.byte_count} bytes, {totals.logged_batches} batches in the log, "
        f"{totals.batch_count} batches and {totals.record_count} records in topics, {seconds:.2f} s"
    )


def _as_text(finding: Finding) -> str:
    location = f"{finding.path}: bytes {finding.from_at} to {finding.to_at}" if finding.to_at else finding.path
    seqs = ""
    if finding.first_seq is not None and (finding.last_seq is None or finding.last_seq >= finding.first_seq):
        seqs = f" (seqs {finding.first_seq} to {'an unknown one' if finding.last_seq is None else finding.last_seq})"
    return f"{location}{seqs}: {finding.what.removeprefix(f'{finding.path}: ')}; {finding.remedy}"


def _as_json(finding: Finding) -> dict[str, JsonValue]:
    return {
        "path": finding.path,
        "from_at": finding.from_at,
        "to_at": finding.to_at,
        "first_seq": finding.first_seq,
        "last_seq": finding.last_seq,
        "what": finding.what,
        "remedy": finding.remedy,
    }

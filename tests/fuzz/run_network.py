"""The long network fuzz run: many invalid bytes to a served node in each version, while other clients work.

    python tests/fuzz/run_network.py [--bytes N] [--seed S] [--version V]

The seed is printed; the same seed makes every connection send the same bytes. A failure ends with 1.
"""

import argparse
import secrets
import sys
import tempfile
import traceback
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("chaos", "server", "fuzz")]


def main() -> int:
    from network_fuzz import MEMORY_GROWTH_KIB_MAX, fuzz

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=10_000_000, help="bytes in each version")
    parser.add_argument("--seed", default="", help="what the bytes follow from; any if it is not given")
    parser.add_argument("--version", type=int, choices=(1, 2), action="append", help="only this version")
    options = parser.parse_args()
    seed = options.seed or secrets.token_hex(4)
    print(f"seed {seed}; again with: python tests/fuzz/run_network.py --bytes {options.bytes} --seed {seed}")
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    for version in options.version or (1, 2):
        with Progress(*columns) as progress, tempfile.TemporaryDirectory(prefix="seawall-fuzz-") as folder:
            task = progress.add_task(f"version {version}", total=options.bytes)
            try:
                outcome = fuzz(
                    Path(folder), version, seed, options.bytes, lambda sent, t=task: progress.advance(t, sent)
                )
            except Exception:
                failed += 1
                progress.print(f"version {version} failed, seed {seed}\n{traceback.format_exc()}")
                continue
        print(
            f"version {version}: {outcome.sent:,} bytes on {outcome.connections:,} connections, "
            f"{outcome.rounds:,} rounds of the witnesses, memory {outcome.grown_kib / 1024:+.1f} MiB "
            f"(at most {MEMORY_GROWTH_KIB_MAX // 1024})"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

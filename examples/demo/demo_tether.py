"""Ends a child process when the demo ends: its standard input is a pipe from the demo.

    python demo_tether.py serve --data …      runs `seawall serve --data …`, tied to its parent; so with other commands

However the demo ends, even by `kill -9`, the operating system closes the pipe.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def end_with_parent(on_line: Callable[[str], object] | None = None) -> None:
    """Read standard input on a thread: pass each line to `on_line`, and exit at once at its end."""

    def watch() -> None:
        for line in sys.stdin:
            if on_line is not None:
                on_line(line)
        os._exit(1)

    threading.Thread(target=watch, name="tether", daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    from seawall.cli.main import main

    sys.argv[0] = "seawall"
    main()

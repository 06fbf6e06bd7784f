"""A child process that never outlives the demo: its standard input is a pipe from there, and it ends where that ends.

    python demo_tether.py serve --data …      is `seawall serve --data …`, tied to whoever started it

However the demo ends, by `kill -9` too, the system closes the pipe.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def end_with_parent(on_line: Callable[[str], object] | None = None) -> None:
    """Watch standard input from now on: hand on its lines, and end this process at once where it ends."""

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

"""Bytes that a disk does not give back: how to tell that error from others, and how to read around it.

A bad sector fails a read of everything around it. Whoever verifies what it reads can treat the sector as damage: it
reads the other pages, and the checksums tell which batches are lost.
"""

from __future__ import annotations

import errno
from typing import Final

from seawall.io.interfaces import Readable
from seawall.limits import PAGE_SIZE

__all__ = ["UNREADABLE", "read_readable"]

#: Codes of errors by which a system says that a disk cannot give back bytes that were written to it.
UNREADABLE: Final = frozenset(
    code
    for name in ("EIO", "EBADMSG", "EUCLEAN", "ENODATA", "EREMOTEIO", "EILSEQ")
    if (code := getattr(errno, name, None)) is not None
)


def read_readable(file: Readable, buffer: memoryview, at: int) -> int:
    """Fill a buffer from position `at`; return the bytes up to its end or the end of the file.

    Pages that the disk cannot give back are zeros. Only who verifies what is read may use this: there they are damage.
    """
    try:
        return file.read_into([buffer], at)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    done = 0
    while done < len(buffer):
        page = buffer[done : done + PAGE_SIZE - (at + done) % PAGE_SIZE]
        try:
            count = file.read_into([page], at + done)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            count = len(page)
            page[:] = bytes(count)
        done += count
        if count < len(page):
            break
    return done

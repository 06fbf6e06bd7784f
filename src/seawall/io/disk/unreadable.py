"""Recognises read errors of a failing disk, and reads around them.

A bad sector fails the read of a whole range. A reader that verifies checksums can treat the sector as damage: it reads
the other pages, and the checksums show which batches are lost.
"""

from __future__ import annotations

import errno
from typing import Final

from seawall.io.interfaces import Readable
from seawall.limits import PAGE_SIZE

__all__ = ["UNREADABLE", "read_skipping_errors"]

#: Error codes for bytes that were written to a disk and can no longer be read.
UNREADABLE: Final = frozenset(
    code
    for name in ("EIO", "EBADMSG", "EUCLEAN", "ENODATA", "EREMOTEIO", "EILSEQ")
    if (code := getattr(errno, name, None)) is not None
)


def read_skipping_errors(file: Readable, buffer: memoryview, at: int) -> int:
    """Fill a buffer from position `at`; return the bytes up to its end or the end of the file.

    Unreadable pages are zeros. Use this only where checksums are verified, so that the zeros count as damage.
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

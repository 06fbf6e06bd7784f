"""Seeded mutations of valid inputs, for every fuzz test and `make fuzz`."""

import random

_INTERESTING = (b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x01", b"\xff\xff")


def mutate(random_source: random.Random, data: bytes) -> bytes:
    """One to four small changes: a flipped bit, an edge value, a cut, a repeated or an inserted piece."""
    buffer = bytearray(data)
    for _ in range(random_source.randint(1, 4)):
        at = random_source.randrange(len(buffer) + 1)
        choice = random_source.randrange(5)
        if choice == 0 and at < len(buffer):
            buffer[at] ^= 1 << random_source.randrange(8)
        elif choice == 1:
            value = random_source.choice(_INTERESTING)
            buffer[at : at + len(value)] = value
        elif choice == 2:
            del buffer[at:]
        elif choice == 3:
            buffer[at:at] = buffer[at : at + random_source.randrange(16)]
        else:
            buffer[at:at] = random_source.randbytes(random_source.randrange(8))
    return bytes(buffer)

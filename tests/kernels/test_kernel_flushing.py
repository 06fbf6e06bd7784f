"""Gathering pieces of a buffer: kernel and twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seawall.kernels.log import flushing as placing
from twins.log import flushing as twin


@given(st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=40)), max_size=8))
def test_pieces_are_joined(pieces: list[tuple[int, bytes]]) -> None:
    """There are unwanted bytes before each piece."""
    source, starts = b"", []
    for gap, piece in pieces:
        starts.append(len(source) + gap)
        source += bytes([255]) * gap + piece
    arguments = (
        np.frombuffer(source or b"\0", np.uint8),
        np.array(starts, np.int64),
        np.array([len(piece) for _, piece in pieces], np.int64),
    )
    wanted = b"".join(piece for _, piece in pieces)
    for kernels in (placing, twin):
        target = np.full(len(wanted) + 3, 7, np.uint8)
        assert kernels.join_pieces(target, *arguments) == len(wanted)
        assert target.tobytes() == wanted + bytes([7, 7, 7])

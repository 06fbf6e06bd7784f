"""Codecs: round trips, and output that never exceeds its bound."""

import subprocess
import sys
import tracemalloc

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.wire.format.codes import Codec
from seawall.wire.format.compression import compress, decompress, decompress_v1

BLOCKS = st.binary(min_size=1, max_size=300) | st.binary(min_size=1, max_size=4).map(lambda part: part * 500)


@given(BLOCKS, st.sampled_from(list(Codec)))
def test_round_trip(block: bytes, codec: Codec) -> None:
    packed = compress(codec, memoryview(block))
    assert decompress(codec, packed, len(block)) == block
    assert decompress(codec, memoryview(packed), len(block)) == block


@given(BLOCKS)
def test_v1_round_trip(block: bytes) -> None:
    assert decompress_v1(compress(Codec.LZ4, block)) == block


@pytest.mark.parametrize("codec", list(Codec))
def test_the_largest_block_round_trips(codec: Codec) -> None:
    block = bytes(limits.BLOCK_SIZE_MAX)
    packed = compress(codec, block)
    assert len(decompress(codec, packed, len(block))) == len(block)
    if codec is Codec.LZ4:
        assert len(decompress_v1(packed)) == len(block)
    with pytest.raises(LimitError):
        compress(codec, block + b"x")


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_the_stated_length_must_match(codec: Codec, change: int) -> None:
    packed = compress(codec, b"seawall" * 100)
    with pytest.raises(CorruptionError):
        decompress(codec, packed, 700 + change)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("raw_length", [-1, limits.BLOCK_SIZE_MAX + 1])
def test_a_stated_length_outside_the_bound_is_refused(codec: Codec, raw_length: int) -> None:
    with pytest.raises(CorruptionError, match="claims"):
        decompress(codec, b"", raw_length)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_empty_blocks_are_never_compressed(codec: Codec) -> None:
    with pytest.raises(InvalidInputError, match="empty block"):
        compress(codec, b"")
    with pytest.raises(CorruptionError, match="empty block"):
        decompress(codec, b"\0", 0)
    assert decompress(Codec.NONE, b"", 0) == b""


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_truncated_or_damaged_input_gives_only_typed_errors(codec: Codec) -> None:
    block = bytes(range(256)) * 2
    packed = bytes(compress(codec, block))
    for size in range(len(packed)):
        with pytest.raises(CorruptionError):
            decompress(codec, packed[:size], len(block))
    for at in range(0, len(packed), 3):
        damaged = bytearray(packed)
        damaged[at] ^= 0x55
        try:
            output = decompress(codec, damaged, len(block))
        except CorruptionError:
            continue
        assert len(output) == len(block)


def test_zstd_accepts_exactly_one_frame() -> None:
    frame = bytes(compress(Codec.ZSTD, b"a" * 100))
    skippable = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"
    for data in (frame + frame, frame + b"x", frame + skippable, skippable + frame, skippable, b"", frame[:4]):
        with pytest.raises(CorruptionError):
            decompress(Codec.ZSTD, data, 100)
        with pytest.raises(CorruptionError):
            decompress(Codec.ZSTD, data, 5)


def streamed(data: bytes, **parameters: int) -> bytes:
    """A frame that does not state its size."""
    settings = zstandard.ZstdCompressionParameters(**parameters)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return stream.compress(data) + stream.flush()


def test_a_zstd_frame_may_omit_its_size() -> None:
    frame = streamed(b"a" * 1000)
    assert zstandard.get_frame_parameters(frame).content_size == zstandard.CONTENTSIZE_UNKNOWN
    assert decompress(Codec.ZSTD, frame, 1000) == b"a" * 1000
    for wrong in (999, 1001):
        with pytest.raises(CorruptionError):
            decompress(Codec.ZSTD, frame, wrong)


def test_the_zstd_window_is_bounded() -> None:
    frame = streamed(b"a" * 1000, window_log=24)
    assert zstandard.get_frame_parameters(frame).window_size > limits.ZSTD_WINDOW_SIZE_MAX
    with pytest.raises(CorruptionError, match="too much memory"):
        decompress(Codec.ZSTD, frame, 1000)


def test_a_zstd_dictionary_is_refused() -> None:
    trained = zstandard.train_dictionary(
        1024, [f"record number {number} of some".encode() * 3 for number in range(400)]
    )
    frame = zstandard.ZstdCompressor(dict_data=trained).compress(b"record number 1")
    with pytest.raises(CorruptionError, match="dictionary"):
        decompress(Codec.ZSTD, frame, 15)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_allocates_no_more_than_stated(codec: Codec) -> None:
    """INV-BOUNDED-OUTPUT."""
    bomb_size = 8 * limits.MIB
    bomb = bytes(compress(codec, bytes(bomb_size)))
    stated = 64 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            decompress(codec, bomb, stated)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < stated + 64 * 1024


def test_a_v1_bomb_stops_at_the_bound() -> None:
    bomb = lz4.block.compress(bytes(limits.BLOCK_SIZE_MAX + 1), store_size=False)
    with pytest.raises(CorruptionError):
        decompress_v1(bomb)


BOMBS = """
import resource, zstandard
from seawall.errors import CorruptionError
from seawall.wire.format.codes import Codec
from seawall.wire.format.compression import decompress

MIB = 1 << 20
stream = zstandard.ZstdCompressor(level=1).compressobj()
unstated = b"".join(stream.compress(bytes(MIB)) for _ in range(128)) + stream.flush()
stated = zstandard.ZstdCompressor(level=1).compressobj(size=128 * MIB)
stated = b"".join(stated.compress(bytes(MIB)) for _ in range(128)) + stated.flush()
lying = stated[:5] + (2**40).to_bytes(8, "little") + bytes(20)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 48 * MIB, used + 48 * MIB))
for bomb in (unstated, stated, lying):
    for length in (10, MIB, 16 * MIB):
        try:
            decompress(Codec.ZSTD, bomb, length)
        except CorruptionError:
            continue
        raise SystemExit("a bomb was accepted")
print("bounded")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space limits are read from /proc")
def test_zstd_bombs_of_128_mib_fit_a_small_address_space() -> None:
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == ("bounded", "")

"""Bounds of what a node holds in memory for its peers, and of the time that they may hold it; each with its reason.

Sizes are in bytes unless the name says otherwise; units come last. All other bounds are in `limits.py`.
"""

from __future__ import annotations

from seawall.limits import KIB, MIB

# --- memory ------------------------------------------------------------------------------------------------------

#: The part of the memory limit, in percent, that is held for peers at the most: frames that arrive or wait, requests,
#: portions for readers, answers. The rest is for the log and for the process itself. Bytes where nobody knows a limit.
PEER_MEMORY_PERCENT = 25
PEER_MEMORY_SIZE = 256 * MIB
PEER_MEMORY_SIZE_MIN = 8 * MIB

#: What is held for one connection: a frame of the largest size that arrives, and a portion that is sent meanwhile.
CONNECTION_MEMORY_SIZE = 64 * MIB

#: Amounts of memory that do not wait behind larger ones; and what is read at once for a reader while others wait.
MEMORY_SMALL_SIZE = 64 * KIB
CONTENDED_PORTION_SIZE = 1 * MIB

#: One receive while too much waits in memory already: requests of most kinds, and no data.
RECEIVE_SHORT_SIZE = 4 * KIB

#: What a request costs beside its bytes: its task and what that refers to.
REQUEST_SIZE = 4 * KIB

# --- time --------------------------------------------------------------------------------------------------------

#: How long one frame may take while others wait for the memory that it has reserved: this, and its size at this rate.
#: Fast enough for any network of a data centre.
CONTENDED_FRAME_TIME_S = 2.0
CONTENDED_FRAME_BYTES_PER_SECOND = 1 * MIB

#: How long a peer may take less than `FRAME_BYTES_PER_SECOND` of its answers while others wait for their memory.
CONTENDED_STALL_S = 5.0

#: A frame before its peer has shown a token, where one is needed: HELLO with the longest token and name, and some more;
#: and how long that may take from the beginning of the connection.
UNADMITTED_PAYLOAD_SIZE_MAX = 16 * KIB
ADMISSION_S = 2.0

# --- the event loop ----------------------------------------------------------------------------------------------

#: Threads that decompress what publishers send: it takes a whole processor each, and others need some, too.
CHECKER_THREADS = 2

#: Plain bytes of compressed batches that are looked at on an event loop, of what came together; bytes of compressed
#: payloads of version 1, which do not say how large they become: both about a millisecond. And what a thread takes at
#: once.
CHECK_HERE_SIZE = 64 * KIB
UNPACK_HERE_SIZE = 4 * KIB
CHECK_SIZE = 32 * MIB

#: A callback of an event loop that takes longer is counted: everybody else on the loop has waited for it.
SLOW_CALLBACK_NS = 1_000_000

#: Bytes of batches whose tags are looked up at once, before others may change the store: few tags come twice in them;
#: and distinct tags that are added, found or dropped before other threads may have the interpreter.
TAG_SLICE_SIZE = 1 * MIB
TAG_SLICE_COUNT = 256

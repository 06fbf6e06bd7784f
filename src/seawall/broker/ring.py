"""One broker's ring and BLog in the fabric, as an object: publish, reserve, answer, and how full it is.

    publish    batches that have arrived, back to back, in one kernel call
    reserve    a slot for a batch that is still arriving (`uploads` gives it a bounded life)
    answers    what can be said about published batches (`kernels.ordering.broker_acks`)
    lend       free bytes to an owner that publishes alone, or has all of a batch at hand: what it receives there need
               not be copied
    has_space   for who would rather receive nothing before there is room for it
    leave      an owner does not wait for room any more

Owners that find no room stand in a queue, and only the first of them may publish: so a large batch gets the room that
comes free, instead of small ones that come later. Whoever owns the ring has all owners that wait try
again whenever room may have come free, and says which of them have gone.

Bytes that are lent are claimed by nobody. They are taken back before anything else is claimed, and whoever has them
moves what it has there; so a loan holds nobody up, and one that is forgotten ends with the next claim.

Making a `BrokerRing` takes the ring over: what a broker before it left claimed and unpublished becomes NOPs at once.
Whoever makes one has seen to it that the broker before has ended.

`kernels.ordering.broker_ring` has the invariants. One thread uses a ring. A crash loses what this object holds, and all
of it can be found out again from the fabric. It must not know connections: an owner is a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.broker.watermarks import Pressure, Watermarks
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.fabric import records
from seawall.fabric.arrays import Bytes, FabricArrays
from seawall.fabric.records import Records
from seawall.kernels.admission import arriving
from seawall.kernels.ordering import broker_acks, broker_ring
from seawall.kernels.runtime.atomics import load_acquire_u64
from seawall.limits import BROKER_ANSWERS_MAX
from seawall.wire.format.codes import AckLevel

Verdicts: TypeAlias = npt.NDArray[np.int64]

#: So many times in a row somebody has published when bytes are lent: with others between, they would only be moved.
_ALONE_AFTER: Final = 4

assert broker_ring.TOKEN_WORD == records.PBR_TOKEN == records.RESULT_TOKEN
assert (broker_ring.TAIL_CLAIMED, broker_ring.TAIL_BLOG_CLAIMED) == (records.TAIL_CLAIMED, records.TAIL_BLOG_CLAIMED)
assert broker_ring.TAIL_BLOG_WANTED == records.TAIL_BLOG_WANTED
assert broker_ring.COMPLETED == records.COMPLETION_COMPLETED
assert broker_acks.CONTROL_DURABLE == records.CONTROL_DURABLE
assert broker_ring.FLAG_STRONG_ORDER == records.FLAG_STRONG_ORDER
assert broker_ring.FLAG_REFUSED == records.FLAG_REFUSED
assert broker_ring.REFUSED_REASON_SHIFT == records.REFUSED_REASON_SHIFT
assert (broker_ring.FLAG_RECOVERED, broker_ring.FLAG_NOP) == (records.FLAG_RECOVERED, records.FLAG_NOP)


class Stop(IntEnum):
    """Why publishing ended where it did."""

    DONE = broker_ring.RUN_DONE
    FULL = broker_ring.RUN_FULL
    NEVER_FITS = broker_ring.RUN_NEVER_FITS
    CUT = broker_ring.RUN_CUT


@dataclass(frozen=True, slots=True)
class Published:
    """Batches that have their slots: `count` of them from index `first` on, the bytes before `consumed`."""

    stop: Stop
    count: int
    first: int
    consumed: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """What became of judged batches: `count` of them, `size` bytes, have slots from `first` on; `rows` are handled."""

    stop: Stop
    count: int
    size: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What batches get that leave order and ack level to their topic."""

    order: int
    ack_level: AckLevel


class BrokerRing:
    """The pending batch ring of one broker, from the broker's side."""

    __slots__ = (
        *(
            "_answers",
            "_arrived",
            "_blog",
            "_completion",
            "_control",
            "_control_words",
            "_entries",
            "_pending",
            "_progress",
            "_queue",
        ),
        *("_in_a_row", "_last_owner", "_results", "_result_words", "_slots", "_state", "_tails", "_take_back"),
        *("_watermarks", "broker", "stuck"),
    )

    def __init__(self, arrays: FabricArrays, broker: int, watermarks: Watermarks | None = None) -> None:
        if not 0 <= broker < len(arrays.pbr):
            raise InvalidInputError(
                f"broker {broker} of a fabric with {len(arrays.pbr)}: take one of them, or raise fabric.brokers"
            )
        self.broker: Final = broker
        self._control_words = arrays.control_words
        self._control = arrays.control_words.view(np.int64)
        self._tails = arrays.tail_words[broker].view(np.int64)
        self._completion = arrays.completion_words[broker].view(np.int64)
        self._slots = arrays.pbr_words[broker]
        self._entries: Bytes = self._slots.view(np.uint8)
        self._result_words = arrays.result_words[broker]
        self._results: Bytes = self._result_words.view(np.uint8)
        self._blog = arrays.blogs[broker]
        self._pending = np.zeros(len(arrays.pbr[broker]), broker_ring.PENDING_ROW)
        self._state = np.zeros(broker_ring.STATE_SIZE, np.int64)
        self._state[broker_ring.BROKER] = broker
        self._progress = np.zeros(broker_ring.PROGRESS_SIZE, np.int64)
        self._arrived = np.zeros(arriving.PROGRESS_SIZE, np.int64)
        self._answers = np.zeros(BROKER_ANSWERS_MAX, broker_acks.ANSWER_ROW)
        self._watermarks = watermarks or Watermarks()
        #: Owners that found no room, the longest waiting first.
        self._queue: dict[int, None] = {}
        #: Who published last, how often before that without another, and how it gives back what is lent to it.
        self._last_owner = -1
        self._in_a_row = 0
        self._take_back: Callable[[], None] | None = None
        #: Slots of the broker before this one that became NOPs.
        self.stuck: Final = broker_ring.resume_ring(
            *(self._state, self._tails, self._completion, self._pending, self._entries, self._slots, self.term)
        )
        if self.stuck < 0:
            raise CorruptionError(
                f"broker {broker} has claimed {self._tails[0]} slots of which {self._completion[0]} are completed, in "
                f"a ring of {len(self._pending)}: remove the fabric and start again, from what is on disk"
            )

    @property
    def term(self) -> int:
        """The term that batches are taken in now."""
        return load_acquire_u64(self._control_words, records.CONTROL_TERM)

    @property
    def claimed(self) -> int:
        """Slots taken since the beginning of the pod."""
        return int(self._state[broker_ring.CLAIMED])

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for an answer, or for space; from any thread."""
        state = self._state
        return bool(self._queue) or state.item(broker_ring.CLAIMED) != state.item(broker_ring.ANSWERED)

    def publish(
        self, batches: Bytes, owner: int, defaults: TopicDefaults, *, start: int = 0, end: int | None = None
    ) -> Published:
        """Publish the batches that lie back to back in a buffer, as many as have room; their checksums were verified.

        `owner` comes back with their answers. What was not consumed is the caller's: it waits (FULL), it is refused
        (NEVER_FITS), or the rest of it is still to come (CUT).
        """
        stop_at = batches.size if end is None else end
        if not 0 <= start <= stop_at <= batches.size:
            raise InvalidInputError(f"bytes {start} to {stop_at} of a buffer of {batches.size}")
        if not self._has_turn(owner):
            return Published(Stop.FULL, 0, self.claimed, start)
        self._end_loan(owner)
        code = broker_ring.publish_run(
            *(batches, start, stop_at, owner, defaults.order, int(defaults.ack_level), self.term),
            *(self._state, self._tails, self._completion, self._pending),
            *(self._entries, self._slots, self._blog, self._progress),
        )
        count, first, consumed = self._progress.tolist()
        self._had_turn(owner, is_waiting=code == broker_ring.RUN_FULL and consumed == start)
        return Published(Stop(code), count, first, consumed)

    def publish_judged(
        self, buffer: Bytes, rows: Records, verdicts: Verdicts, owner: int, orders: Bytes, levels: Bytes
    ) -> Arrived:
        """Publish the batches judged TAKEN by `kernels.admission.arriving`, as many as have space.

        Refusals that use a number get slots too, and one that never fits is refused so in `verdicts`; rows that were
        not handled are the caller's.
        """
        if not self._has_turn(owner):
            return Arrived(Stop.FULL, 0, 0, self.claimed, 0)
        self._end_loan(owner)
        code = arriving.publish_judged(
            *(buffer, rows, verdicts, owner, orders, levels, self.term),
            *(self._state, self._tails, self._completion, self._pending),
            *(self._entries, self._slots, self._blog, self._arrived),
        )
        count, size, first, handled = self._arrived.tolist()
        self._had_turn(owner, is_waiting=code == broker_ring.RUN_FULL and not handled)
        return Arrived(Stop(code), count, size, first, handled)

    def lend(self, owner: int, size: int, take_back: Callable[[], None], *, at_hand: bool = False) -> Bytes | None:
        """Free bytes where the next batch of an owner would lie; None if there are not so many, or others publish too.

        They are the owner's until it publishes, one batch that begins where they do; or until `take_back` is called.
        With others between, that is mostly before the batch has come; so they get bytes only for what is `at_hand`.
        """
        is_alone = owner == self._last_owner and self._in_a_row >= _ALONE_AFTER
        if self._queue or not (is_alone or at_hand):
            return None
        at = self._free_space_for(size)
        if at == broker_ring.NO_SPACE:
            return None
        if owner != self._last_owner:
            self._change_owner(owner)
        self._take_back = take_back
        return self._blog[at : at + size]

    def has_space(self, owner: int, size: int) -> bool:
        """Whether a batch of so many bytes would get its room now; if not, its owner stands in the queue for it."""
        if not self._has_turn(owner):
            return False
        if size > self._blog.size or self._free_space_for(size) != broker_ring.NO_SPACE:
            return True
        arriving.want_space(self._state, self._tails, self._blog.size, size)
        self._queue[owner] = None
        return False

    def _free_space_for(self, size: int) -> int:
        return arriving.free_space_for(self._state, self._completion, self._pending, self._blog.size, size)

    def _end_loan(self, owner: int) -> None:
        """Somebody is about to claim: what is lent to another comes back first."""
        if owner == self._last_owner:
            self._in_a_row += 1
        else:
            self._change_owner(owner)
        self._take_back = None

    def _change_owner(self, owner: int) -> None:
        self._last_owner, self._in_a_row = owner, 0
        if self._take_back is not None:
            self._take_back()

    def leave(self, owner: int) -> bool:
        """An owner waits for room no more; whether others do for whom that makes way."""
        if owner == self._last_owner:
            self._last_owner, self._take_back = -1, None
        if owner not in self._queue:
            return False
        was_first = next(iter(self._queue)) == owner
        del self._queue[owner]
        if was_first:
            broker_ring.want_bytes(self._state, self._tails, 0)
        return was_first and bool(self._queue)

    def _has_turn(self, owner: int) -> bool:
        """Whether an owner may publish; it stands in the queue if not."""
        if not self._queue or next(iter(self._queue)) == owner:
            return True
        self._queue[owner] = None
        return False

    def _had_turn(self, owner: int, *, is_waiting: bool) -> None:
        """Whoever got anything in goes behind the others, if it has more."""
        if is_waiting:
            self._queue[owner] = None
        elif self._queue:
            self._queue.pop(owner, None)

    def reserve(self, size: int, deadline_ns: int) -> int | None:
        """Claim a slot for a batch of `size` bytes that is still to come: its index, or None without room."""
        self._end_loan(-1)
        index = broker_ring.reserve_slot(
            *(self._state, self._tails, self._completion, self._pending, self._blog.size, size, deadline_ns)
        )
        if index == broker_ring.NEVER_FITS:
            raise LimitError(
                f"a batch of {size} bytes, the BLog has {self._blog.size}: send smaller ones or raise fabric.blog_size"
            )
        return index if index >= 0 else None

    def reserved_bytes(self, index: int) -> Bytes:
        """Where the batch of a reservation goes; not to be touched once it is published or abandoned."""
        row = self._pending[index % len(self._pending)]
        at = int(row["blog_offset"]) % self._blog.size
        return self._blog[at : at + int(row["size"])]

    def publish_reserved(self, index: int, owner: int, defaults: TopicDefaults) -> bool:
        """Publish a reservation whose bytes are there; false if it was abandoned before."""
        code = broker_ring.publish_reserved(
            *(self._state, self._pending, self._entries, self._slots, self._blog),
            *(index, owner, defaults.order, int(defaults.ack_level), self.term),
        )
        if code == broker_ring.RESERVED_CUT:
            raise InvalidInputError(f"slot {index} does not hold one batch of its size: abandon it")
        return code == broker_ring.RESERVED_PUBLISHED

    def abandon(self, index: int) -> bool:
        """Make a NOP of a reservation; false if it is none any more."""
        arrays = (self._state, self._pending, self._entries, self._slots)
        return broker_ring.abandon_reserved(*arrays, index, self.term) == 1

    def overdue(self, now_ns: int, most: int) -> list[int]:
        """Reservations whose deadline has come, oldest first."""
        found = np.zeros(most, np.int64)
        count = broker_ring.find_overdue(self._state, self._pending, now_ns, found)
        return [int(index) for index in found[:count]]

    def answers(self) -> Records:
        """Answers that can be given now (`ANSWER_ROW`), valid until the next call; an empty array if there are none."""
        arrays = (self._state, self._pending, self._result_words, self._results, self._control, self._answers)
        return self._answers[: broker_acks.collect_answers(*arrays)]

    def pressure(self, now_ns: int) -> Pressure:
        """The advice of the watermarks, by whichever is fuller: the ring or the BLog."""
        broker_ring.free_completed(self._state, self._completion, self._pending)
        state = self._state
        slots = int(state[broker_ring.CLAIMED] - state[broker_ring.FREED])
        used = int(state[broker_ring.BLOG_CLAIMED] - state[broker_ring.BLOG_FREED])
        capacity = len(self._pending) * self._blog.size
        return self._watermarks.observe(max(slots * self._blog.size, used * len(self._pending)), capacity, now_ns)

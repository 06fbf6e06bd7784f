"""One broker's pending batch ring and BLog in the fabric: publishes batches, reserves slots, collects answers.

    publish    adjacent received batches, in one kernel call
    reserve    a slot for a batch that is still arriving (`uploads` bounds its lifetime)
    answers    the due answers for published batches (`kernels.ordering.broker_acks`)
    lend       free bytes to an owner that publishes alone, or has a complete batch at hand: what it receives there
               needs no copy
    has_space  lets an owner wait for space before it receives a batch
    leave      removes an owner from the wait queue

Owners without space wait in a FIFO queue, and only the first of them may publish: so a large batch gets the space that
becomes free, instead of later small ones. The user of the ring lets all waiting owners try again whenever space may
have become free, and calls `leave` for owners that have gone.

Lent bytes are not claimed. Before any other claim they are revoked, and the borrower copies its data elsewhere; so a
loan blocks nobody, and a forgotten one ends with the next claim.

Creating a `BrokerRing` takes the ring over: slots that the previous broker left claimed and unpublished become NOPs at
once. The caller guarantees that the previous broker has ended.

`kernels.ordering.broker_ring` declares the invariants. One thread uses a ring. A crash loses the state of this object,
which can be restored from the fabric. This module must not know connections: an owner is a number.
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

#: Publishes in a row before an owner is lent bytes: with interleaved owners, the data would only be copied away.
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
    """Why publishing stopped."""

    DONE = broker_ring.RUN_DONE
    FULL = broker_ring.RUN_FULL
    NEVER_FITS = broker_ring.RUN_NEVER_FITS
    CUT = broker_ring.RUN_CUT


@dataclass(frozen=True, slots=True)
class Published:
    """The published batches: `count` slots from index `first` on, the bytes before `consumed`."""

    stop: Stop
    count: int
    first: int
    consumed: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """The published part of validated batches: `count` slots from `first` on, `size` bytes, `rows` handled."""

    stop: Stop
    count: int
    size: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Order and ack level of batches that leave them to their topic."""

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
        *("_consecutive", "_last_owner", "_results", "_result_words", "_revoke_loan", "_slots", "_state", "_tails"),
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
        #: Owners that wait for space, the longest waiting first.
        self._queue: dict[int, None] = {}
        #: The owner that published last, how often in a row, and the callback that revokes its loan.
        self._last_owner = -1
        self._consecutive = 0
        self._revoke_loan: Callable[[], None] | None = None
        #: Slots of the previous broker that became NOPs.
        self.stuck: Final = broker_ring.resume_ring(
            *(self._state, self._tails, self._completion, self._pending, self._entries, self._slots, self.term)
        )
        if self.stuck < 0:
            raise CorruptionError(
                f"broker {broker} has claimed {self._tails[0]} slots of which {self._completion[0]} are completed, in "
                f"a ring of {len(self._pending)}: remove the fabric and start again, from the data directory"
            )

    @property
    def term(self) -> int:
        """The current term."""
        return load_acquire_u64(self._control_words, records.CONTROL_TERM)

    @property
    def claimed(self) -> int:
        """The number of slots claimed since the pod was created."""
        return int(self._state[broker_ring.CLAIMED])

    @property
    def is_awaited(self) -> bool:
        """True if an owner waits for an answer or for space; callable from any thread."""
        state = self._state
        return bool(self._queue) or state.item(broker_ring.CLAIMED) != state.item(broker_ring.ANSWERED)

    def publish(
        self, batches: Bytes, owner: int, defaults: TopicDefaults, *, start: int = 0, end: int | None = None
    ) -> Published:
        """Publish adjacent batches of a buffer, as many as have space; their checksums were verified.

        Their answers carry `owner`. The caller keeps the unconsumed rest: it waits (FULL), is refused (NEVER_FITS), or
        is incomplete (CUT).
        """
        stop_at = batches.size if end is None else end
        if not 0 <= start <= stop_at <= batches.size:
            raise InvalidInputError(f"bytes {start} to {stop_at} of a buffer of {batches.size}")
        if not self._may_publish(owner):
            return Published(Stop.FULL, 0, self.claimed, start)
        self._begin_claim(owner)
        code = broker_ring.publish_run(
            *(batches, start, stop_at, owner, defaults.order, int(defaults.ack_level), self.term),
            *(self._state, self._tails, self._completion, self._pending),
            *(self._entries, self._slots, self._blog, self._progress),
        )
        count, first, consumed = self._progress.tolist()
        self._update_queue(owner, is_waiting=code == broker_ring.RUN_FULL and consumed == start)
        return Published(Stop(code), count, first, consumed)

    def publish_validated(
        self, buffer: Bytes, rows: Records, verdicts: Verdicts, owner: int, orders: Bytes, levels: Bytes
    ) -> Arrived:
        """Publish the batches with verdict ACCEPTED (`kernels.admission.arriving`), as many as have space.

        Refusals with NUMBER_USED get slots too; a batch that never fits is refused in `verdicts`. The caller keeps the
        rows that were not handled.
        """
        if not self._may_publish(owner):
            return Arrived(Stop.FULL, 0, 0, self.claimed, 0)
        self._begin_claim(owner)
        code = arriving.publish_validated(
            *(buffer, rows, verdicts, owner, orders, levels, self.term),
            *(self._state, self._tails, self._completion, self._pending),
            *(self._entries, self._slots, self._blog, self._arrived),
        )
        count, size, first, handled = self._arrived.tolist()
        self._update_queue(owner, is_waiting=code == broker_ring.RUN_FULL and not handled)
        return Arrived(Stop(code), count, size, first, handled)

    def lend(self, owner: int, size: int, take_back: Callable[[], None], *, at_hand: bool = False) -> Bytes | None:
        """The free bytes of an owner's next batch; None if there is no space, or if other owners publish too.

        The owner may use them until it publishes, one batch at their start, or until `take_back` is called. With
        interleaved owners that mostly happens before the batch is complete; so they borrow only if it is `at_hand`.
        """
        is_alone = owner == self._last_owner and self._consecutive >= _ALONE_AFTER
        if self._queue or not (is_alone or at_hand):
            return None
        at = self._free_space_for(size)
        if at == broker_ring.NO_SPACE:
            return None
        if owner != self._last_owner:
            self._change_owner(owner)
        self._revoke_loan = take_back
        return self._blog[at : at + size]

    def has_space(self, owner: int, size: int) -> bool:
        """True if a batch of this size has space now; otherwise its owner joins the queue."""
        if not self._may_publish(owner):
            return False
        if size > self._blog.size or self._free_space_for(size) != broker_ring.NO_SPACE:
            return True
        arriving.want_space(self._state, self._tails, self._blog.size, size)
        self._queue[owner] = None
        return False

    def _free_space_for(self, size: int) -> int:
        return arriving.free_space_for(self._state, self._completion, self._pending, self._blog.size, size)

    def _begin_claim(self, owner: int) -> None:
        """Revoke the loan of another owner before a claim."""
        if owner == self._last_owner:
            self._consecutive += 1
        else:
            self._change_owner(owner)
        self._revoke_loan = None

    def _change_owner(self, owner: int) -> None:
        self._last_owner, self._consecutive = owner, 0
        if self._revoke_loan is not None:
            self._revoke_loan()

    def leave(self, owner: int) -> bool:
        """Remove an owner from the queue; True if that lets another waiting owner try again."""
        if owner == self._last_owner:
            self._last_owner, self._revoke_loan = -1, None
        if owner not in self._queue:
            return False
        was_first = next(iter(self._queue)) == owner
        del self._queue[owner]
        if was_first:
            broker_ring.want_bytes(self._state, self._tails, 0)
        return was_first and bool(self._queue)

    def _may_publish(self, owner: int) -> bool:
        """True if an owner may publish; otherwise it joins the queue."""
        if not self._queue or next(iter(self._queue)) == owner:
            return True
        self._queue[owner] = None
        return False

    def _update_queue(self, owner: int, *, is_waiting: bool) -> None:
        """Update the queue after a publish: an owner that published anything loses its place at the front."""
        if is_waiting:
            self._queue[owner] = None
        elif self._queue:
            self._queue.pop(owner, None)

    def reserve(self, size: int, deadline_ns: int) -> int | None:
        """Claim a slot for a batch of `size` bytes that is still arriving; returns its index, or None without space."""
        self._begin_claim(-1)
        index = broker_ring.reserve_slot(
            *(self._state, self._tails, self._completion, self._pending, self._blog.size, size, deadline_ns)
        )
        if index == broker_ring.NEVER_FITS:
            raise LimitError(
                f"a batch has {size} bytes, the BLog {self._blog.size}: send smaller ones or raise fabric.blog_size"
            )
        return index if index >= 0 else None

    def reserved_bytes(self, index: int) -> Bytes:
        """The buffer of a reservation; do not touch it once the batch is published or abandoned."""
        row = self._pending[index % len(self._pending)]
        at = int(row["blog_offset"]) % self._blog.size
        return self._blog[at : at + int(row["size"])]

    def publish_reserved(self, index: int, owner: int, defaults: TopicDefaults) -> bool:
        """Publish a reservation whose bytes are complete; False if it was abandoned before."""
        code = broker_ring.publish_reserved(
            *(self._state, self._pending, self._entries, self._slots, self._blog),
            *(index, owner, defaults.order, int(defaults.ack_level), self.term),
        )
        if code == broker_ring.RESERVED_CUT:
            raise InvalidInputError(f"slot {index} does not hold one batch of its size: abandon it")
        return code == broker_ring.RESERVED_PUBLISHED

    def abandon(self, index: int) -> bool:
        """Publish a reservation as a NOP; False if it is not reserved any more."""
        arrays = (self._state, self._pending, self._entries, self._slots)
        return broker_ring.abandon_reserved(*arrays, index, self.term) == 1

    def overdue(self, now_ns: int, most: int) -> list[int]:
        """Reservations past their deadline, oldest first, at most `most`."""
        found = np.zeros(most, np.int64)
        count = broker_ring.find_overdue(self._state, self._pending, now_ns, found)
        return [int(index) for index in found[:count]]

    def answers(self) -> Records:
        """The due answers (`ANSWER_ROW`), valid until the next call; an empty array if there are none."""
        arrays = (self._state, self._pending, self._result_words, self._results, self._control, self._answers)
        return self._answers[: broker_acks.collect_answers(*arrays)]

    def pressure(self, now_ns: int) -> Pressure:
        """The pressure by the fuller of ring and BLog."""
        broker_ring.free_completed(self._state, self._completion, self._pending)
        state = self._state
        slots = int(state[broker_ring.CLAIMED] - state[broker_ring.FREED])
        used = int(state[broker_ring.BLOG_CLAIMED] - state[broker_ring.BLOG_FREED])
        capacity = len(self._pending) * self._blog.size
        return self._watermarks.observe(max(slots * self._blog.size, used * len(self._pending)), capacity, now_ns)

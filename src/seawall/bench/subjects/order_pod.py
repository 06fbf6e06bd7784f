"""A pod of processes under load: a sequencer, a broker, and writers, each forked from this process.

What they share is memory of this process alone: a fabric, wakeups and boards; no file is left behind. The replica is
one number, written by the sequencer's process: figures here are of ack level 1, which does not wait for it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Final

import numpy as np

from seawall.bench.subjects.order_rings import CEILING, NoOwner
from seawall.bench.subjects.order_writers import Writer, WriterBoard, Writing
from seawall.broker.ring import TopicDefaults
from seawall.core.types import ClientSeq, SessionEpoch, Term, TopicId
from seawall.engine.ordering.broker_connections import Publisher
from seawall.engine.ordering.pod_processes import BrokerRole, SequencerRole
from seawall.errors import InvariantError, UnsupportedError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.io.network.sockets import OsStream, stream_pair
from seawall.io.process.clocks import OsClock
from seawall.io.process.role_process import RoleProcess
from seawall.io.process.wakeups import WakeUpEvent, keep_stepping
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.kernels.runtime.warm import warm
from seawall.limits import CLIENT_ROW_SIZE, KIB, MIB, PAGE_SIZE
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers
from seawall.sequencer.pod_sequencer import PodSequencer
from seawall.wire.format.codes import AckLevel

#: The two topics of a pod: order 2, and order 5.
WEAK: Final = TopicId(2)
STRONG: Final = TopicId(5)

SIZES: Final = FabricSizes(
    brokers=1, goi_entries=1 << 16, pbr_entries=1 << 13, checkpoint_size=64 * KIB, blog_size=64 * MIB
)

#: Longest wait for the first ack.
_FIRST_ACK_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class RunningPod:
    """Processes that run; made by `running_pod`."""

    processes: Sequence[RoleProcess]
    boards: Sequence[WriterBoard]
    wakeups: Sequence[WakeUpEvent]

    @property
    def acked(self) -> int:
        """Batches acknowledged to all writers."""
        return sum(board.acked for board in self.boards)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Let all writers send; what is under way at the end is waited for by nobody."""
        for board, bell in zip(self.boards, self.wakeups, strict=True):
            board.forget_latencies()
            board.publishes = True
            bell.ring()
        try:
            yield
        finally:
            for board in self.boards:
                board.publishes = False

    def wait_for_acks(self) -> None:
        """Wait until something is acknowledged."""
        before, deadline = self.acked, perf_counter_ns() + int(_FIRST_ACK_SECONDS * 1e9)
        while self.acked == before:
            ended = [process.name for process in self.processes if process.wait(0)]
            if ended or perf_counter_ns() > deadline:
                raise InvariantError("INV-BENCH-OK", f"nothing is acknowledged; ended: {', '.join(ended) or 'none'}")
            sleep(_LOOK_SECONDS)

    def cpu_ns(self) -> int:
        """Time that the processes have had a core, all together."""
        try:
            return sum(
                int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[0])
                for process in self.processes
            )
        except OSError as error:
            raise UnsupportedError("this system does not tell how long a process had a core") from error


@contextmanager
def running_pod(writings: Sequence[Writing]) -> Iterator[RunningPod]:
    """A pod with these writers, who wait until they are told to publish."""
    warm()
    layout = FabricLayout.of(SIZES)
    memory = mmap.mmap(-1, layout.size)
    np.frombuffer(memory, np.uint8)[::PAGE_SIZE] = 0  # a fabric has all its pages
    fabric = FabricArrays(memoryview(memory), layout)
    sequencer_wakeup, broker_wakeup = WakeUpEvent(), WakeUpEvent()
    with ExitStack() as opened:
        pairs = [stream_pair(f"writer {number}") for number in range(len(writings))]
        ends = [end for pair in pairs for end in pair]
        boards = [WriterBoard() for _ in writings]
        wakeups = [WakeUpEvent() for _ in writings]
        step = _sequencer_step(fabric, writings, broker_wakeup)
        processes = [_forked(opened, "sequencer", step, sequencer_wakeup, ends)]
        broker = BrokerRole(fabric, 0, wakeup=broker_wakeup, sequencer=sequencer_wakeup)
        for (_, stream), writing in zip(pairs, writings, strict=True):
            broker.connect(stream, _publisher(writing))
        processes.append(_forked(opened, "broker", broker.step, broker_wakeup, [near for near, _ in pairs]))
        for number, ((stream, _), writing) in enumerate(zip(pairs, writings, strict=True)):
            writer = Writer(stream, boards[number], writing, wakeups[number])
            others = [end for end in ends if end is not stream]
            processes.append(_forked(opened, f"writer {number}", writer.step, wakeups[number], others))
        for end in ends:
            end.close()
        yield RunningPod(processes, boards, wakeups)
    for process in processes:
        if process.exit_code != 0:
            raise InvariantError("INV-BENCH-OK", f"{process.name} has ended with {process.exit_code}")


def _forked(
    opened: ExitStack, name: str, step: Callable[[], int], bell: WakeUpEvent, foreign: Sequence[OsStream]
) -> RoleProcess:
    """A role in a process of its own, which ends with the stack; `foreign` streams are not its own."""

    def work() -> None:
        for stream in foreign:
            stream.close()
        keep_stepping(step, bell)

    process = RoleProcess(name, work, on_terminate=bell.stop)
    opened.callback(process.close)
    return process


def _publisher(writing: Writing) -> Publisher:
    order = 5 if writing.topic_id == STRONG else 2
    return Publisher(SessionEpoch(writing.session_epoch), ClientSeq(0), TopicDefaults(order, AckLevel.ORDERED))


def _sequencer_step(fabric: FabricArrays, writings: Sequence[Writing], broker: WakeUpEvent) -> Callable[[], int]:
    """The sequencer's role, and what stands for the replica: all that is committed is durable at once."""
    frontier = CommitFrontier()
    frontier.add_topic(TopicNumbers(WEAK, ceiling=CEILING))
    frontier.add_topic(TopicNumbers(STRONG, ceiling=CEILING, is_strong=True))
    sequencer = PodSequencer.start_cold(fabric, frontier, NoOwner(frontier), Term(1))
    for writing in writings:
        row = np.zeros(CLIENT_ROW_SIZE // 8, np.uint64)
        row[:3] = writing.client_id, writing.session_epoch, 1
        sequencer.workers[0].import_rows(row.tobytes())
    role = SequencerRole(sequencer, OsClock(), members=(0,), min_replicas=1, brokers=(broker,))

    def step() -> int:
        store_release_u64(fabric.replica_words[0], records.REPLICA_DURABLE, sequencer.frontier.committed)
        return role.step()

    return step

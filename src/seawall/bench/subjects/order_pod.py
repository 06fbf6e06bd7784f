"""A pod of processes under load: a sequencer, a broker, and writers, each forked from this process.

They share anonymous memory of this process (a fabric, wake-up events and boards), so no file is left behind. The
replica is only a number that the sequencer process writes: the figures use ack level 1, which does not wait for it.
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
from seawall.bench.subjects.order_writers import Writer, WriterBoard, WriterLoad
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

#: The two topics of a pod: of order 2 and of order 5.
WEAK: Final = TopicId(2)
STRONG: Final = TopicId(5)

SIZES: Final = FabricSizes(
    brokers=1, goi_entries=1 << 16, pbr_entries=1 << 13, checkpoint_size=64 * KIB, blog_size=64 * MIB
)

#: Longest wait for the first ack.
_FIRST_ACK_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class RunningPod:
    """The processes of a running pod; made by `running_pod`."""

    processes: Sequence[RoleProcess]
    boards: Sequence[WriterBoard]
    wakeups: Sequence[WakeUpEvent]

    @property
    def acked(self) -> int:
        """Batches acknowledged so far, summed over all writers."""
        return sum(board.acked for board in self.boards)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Let all writers publish; does not wait for batches in flight at the end."""
        for board, wakeup in zip(self.boards, self.wakeups, strict=True):
            board.forget_latencies()
            board.publishes = True
            wakeup.wake()
        try:
            yield
        finally:
            for board in self.boards:
                board.publishes = False

    def wait_for_acks(self) -> None:
        """Wait until another batch is acknowledged."""
        before, deadline = self.acked, perf_counter_ns() + int(_FIRST_ACK_SECONDS * 1e9)
        while self.acked == before:
            exited = [process.name for process in self.processes if process.wait(0)]
            if exited or perf_counter_ns() > deadline:
                raise InvariantError(
                    "INV-BENCH-OK", f"no batch was acknowledged; exited processes: {', '.join(exited) or 'none'}"
                )
            sleep(_POLL_SECONDS)

    def cpu_ns(self) -> int:
        """CPU time of all processes together, in nanoseconds."""
        try:
            return sum(
                int(Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii").split()[0])
                for process in self.processes
            )
        except OSError as error:
            raise UnsupportedError("this system does not report the CPU time of a process") from error


@contextmanager
def running_pod(loads: Sequence[WriterLoad]) -> Iterator[RunningPod]:
    """Start a pod with these writers, which publish within `RunningPod.publishing`."""
    warm()
    layout = FabricLayout.of(SIZES)
    memory = mmap.mmap(-1, layout.size)
    np.frombuffer(memory, np.uint8)[::PAGE_SIZE] = 0  # map all pages, as those of a real fabric are
    fabric = FabricArrays(memoryview(memory), layout)
    sequencer_wakeup, broker_wakeup = WakeUpEvent(), WakeUpEvent()
    with ExitStack() as stack:
        pairs = [stream_pair(f"writer {number}") for number in range(len(loads))]
        ends = [end for pair in pairs for end in pair]
        boards = [WriterBoard() for _ in loads]
        wakeups = [WakeUpEvent() for _ in loads]
        step = _sequencer_step(fabric, loads, broker_wakeup)
        processes = [_forked(stack, "sequencer", step, sequencer_wakeup, ends)]
        broker = BrokerRole(fabric, 0, wakeup=broker_wakeup, sequencer=sequencer_wakeup)
        for (_, stream), load in zip(pairs, loads, strict=True):
            broker.connect(stream, _publisher(load))
        processes.append(_forked(stack, "broker", broker.step, broker_wakeup, [near for near, _ in pairs]))
        for number, ((stream, _), load) in enumerate(zip(pairs, loads, strict=True)):
            writer = Writer(stream, boards[number], load, wakeups[number])
            others = [end for end in ends if end is not stream]
            processes.append(_forked(stack, f"writer {number}", writer.step, wakeups[number], others))
        for end in ends:
            end.close()
        yield RunningPod(processes, boards, wakeups)
    for process in processes:
        if process.exit_code != 0:
            raise InvariantError("INV-BENCH-OK", f"process {process.name} exited with {process.exit_code}")


def _forked(
    stack: ExitStack, name: str, step: Callable[[], int], wakeup: WakeUpEvent, foreign: Sequence[OsStream]
) -> RoleProcess:
    """Fork a role; it ends with the stack. The child closes the `foreign` streams, which belong to other roles."""

    def work() -> None:
        for stream in foreign:
            stream.close()
        keep_stepping(step, wakeup)

    process = RoleProcess(name, work, on_terminate=wakeup.stop)
    stack.callback(process.close)
    return process


def _publisher(load: WriterLoad) -> Publisher:
    order = 5 if load.topic_id == STRONG else 2
    return Publisher(SessionEpoch(load.session_epoch), ClientSeq(0), TopicDefaults(order, AckLevel.ORDERED))


def _sequencer_step(fabric: FabricArrays, loads: Sequence[WriterLoad], broker: WakeUpEvent) -> Callable[[], int]:
    """The step function of the sequencer, which also acts as the replica: committed batches are durable at once."""
    frontier = CommitFrontier()
    frontier.add_topic(TopicNumbers(WEAK, ceiling=CEILING))
    frontier.add_topic(TopicNumbers(STRONG, ceiling=CEILING, is_strong=True))
    sequencer = PodSequencer.start_cold(fabric, frontier, NoOwner(frontier), Term(1))
    for load in loads:
        row = np.zeros(CLIENT_ROW_SIZE // 8, np.uint64)
        row[:3] = load.client_id, load.session_epoch, 1
        sequencer.workers[0].import_rows(row.tobytes())
    role = SequencerRole(sequencer, OsClock(), members=(0,), min_replicas=1, brokers=(broker,))

    def step() -> int:
        store_release_u64(fabric.replica_words[0], records.REPLICA_DURABLE, sequencer.frontier.committed)
        return role.step()

    return step

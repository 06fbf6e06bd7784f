"""Public simulators for tests: a disk, a clock and a network that fail on demand and replay from a seed.

| name | stands in for | goes wrong by |
|---|---|---|
| `SimDisk` | files and directories | losing, tearing, reordering unsynced writes; failing and short calls; bit rot |
| `SimClock` | wall and monotonic time | wall clocks that step and run fast or slow; time passes only when told to |
| `SimNet` | messages and TCP streams | delay, loss, duplication, reordering, partitions, resets |
| `SimSharedMemory` | shared mappings | losing all of them with the power |
| `SimHost` | a machine | killed processes, lost power |

All run in one thread, take a seed, never look at real time, and keep a readable `history()`: print it when a test
fails. The same seed gives the same run.

What a pod does is recorded as a `History` of the events in `order_events`, and judged: `check_all` of
`ordering_checkers` raises an `OrderingViolationError` where it breaks a promise of the order. `pod_world` is a pod of
real roles over simulated parts, stepped by whoever has it; `pod_run` runs one as a seed decides.
"""

from seawall.testing.checkers.history import History, PodShape
from seawall.testing.checkers.ordering_checkers import OrderingViolationError, check_all
from seawall.testing.machine.clock import SimClock
from seawall.testing.machine.disk import SimDisk
from seawall.testing.machine.disk_file import DeadHandleError, SimFile
from seawall.testing.machine.faults import Fault, SimCrash
from seawall.testing.machine.host import SimHost
from seawall.testing.machine.links import Link
from seawall.testing.machine.memory import SimSharedMemory
from seawall.testing.machine.net import SimNet

__all__ = [
    "DeadHandleError",
    "Fault",
    "History",
    "Link",
    "OrderingViolationError",
    "PodShape",
    "SimClock",
    "SimCrash",
    "SimDisk",
    "SimFile",
    "SimHost",
    "SimNet",
    "SimSharedMemory",
    "check_all",
]

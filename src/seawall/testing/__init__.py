"""Public simulators for tests: a disk, a clock and a network that fail on demand and replay from a seed.

| name | simulates | faults |
|---|---|---|
| `SimDisk` | files and directories | losing, tearing, reordering unsynced writes; failing and short calls; bit rot |
| `SimClock` | wall and monotonic time | wall clocks that step and run fast or slow; time passes only by `advance` |
| `SimNet` | messages and TCP streams | delay, loss, duplication, reordering, partitions, resets |
| `SimSharedMemory` | shared mappings | loss of all of them in a power loss |
| `SimHost` | a machine | killed processes, lost power |

All simulators run in one thread, take a seed, never read the real time, and keep a readable `history()`; print it when
a test fails. The same seed gives the same run.

To test the total order of a pod, record a `History` of the events in `checkers.order_events` and pass it to
`check_all`, which raises an `OrderingViolationError` if the history breaks a guarantee of the order. `pod.world` has a
pod of real roles over simulated parts, which a test steps; `pod.run` steps one by seeded choices.
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

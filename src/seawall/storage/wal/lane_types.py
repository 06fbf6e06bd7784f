"""The value types of lanes: states, policies, outcomes, settings, and the event at the end of every flush.

`lanes` and `lane_group` implement the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from seawall import limits
from seawall.core.types import LaneEpoch
from seawall.errors import InvalidInputError


class LanePhase(Enum):
    """The phase of one half of a lane."""

    WRITABLE = "writable"
    SEALED = "sealed"
    FLUSHING = "flushing"


@dataclass(frozen=True, slots=True)
class LaneState:
    """A half of a lane: its phase, and the epoch it is sealed or flushed under."""

    phase: LanePhase
    epoch: LaneEpoch | None = None

    def __str__(self) -> str:
        return self.phase.value if self.epoch is None else f"{self.phase.value}({self.epoch})"


WRITABLE = LaneState(LanePhase.WRITABLE)


class LanePolicy(Enum):
    """What happens to a batch that does not fit the active half."""

    BLOCK_WRITER = "block_writer"
    ALLOCATE_OVERFLOW = "allocate_overflow"


class LaneOutcome(Enum):
    """The result of an append."""

    ACCEPTED = "accepted"  #: in the active half
    QUEUED = "queued"  #: in the overflow
    REFUSED = "refused"  #: not staged: the worker keeps it and tries again after a flush


class FlushOutcome(Enum):
    """The result of a flush."""

    FLUSHED = "flushed"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """Sizes and policy of a lane."""

    buffer_size: int = limits.LANE_BUFFER_SIZE
    overflow_size: int = limits.LANE_OVERFLOW_SIZE
    policy: LanePolicy = LanePolicy.ALLOCATE_OVERFLOW

    def __post_init__(self) -> None:
        if self.buffer_size < limits.LARGE_BATCH_SIZE or self.overflow_size < 0:
            raise InvalidInputError(
                f"a lane of {self.buffer_size} bytes and {self.overflow_size} of overflow: at least "
                f"{limits.LARGE_BATCH_SIZE}, so that every batch that is copied fits an empty lane, and 0"
            )


@dataclass(frozen=True, slots=True)
class LaneTrace:
    """The ids that connect lane events to the run they belong to."""

    trace_id: str = ""
    run_id: str = ""
    scenario_id: str = ""
    work_id: str = ""


@dataclass(frozen=True, slots=True)
class LaneEvent:
    """The end of one flush of one lane, successful or failed."""

    trace_id: str
    run_id: str
    scenario_id: str
    work_id: str
    core_id: int
    epoch: LaneEpoch
    lane_state_from: str
    lane_state_to: str
    outcome: FlushOutcome
    duration_us: int
    error_code: str | None


Observer: TypeAlias = Callable[[LaneEvent], None]

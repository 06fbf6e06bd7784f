"""Record the events of a simulation, in order and in readable form.

`EventLog` is the history of a simulator: one line per event; when it is full it drops the oldest. A failing test prints
`history()`. Two runs with the same seed give the same lines, which is how the tests check determinism.

`History` is the input of the ordering checkers: the events of `order_events`, numbered over the whole pod. It drops
nothing, because a checker that misses an event proves nothing; a full history raises an error. It renders one line per
event, and converts to JSON lines and back, so that a failing history can be stored.

The step number of an event is the number of events before it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, Final, get_type_hints

from seawall.errors import FullError, InvalidInputError
from seawall.testing.checkers.order_events import EVENT_TYPES, OrderEvent
from seawall.testing.limits import ORDER_HISTORY_EVENTS_MAX, SIM_HISTORY_EVENTS_MAX

__all__ = ["EventLog", "History", "PodShape", "Step"]


class EventLog:
    """A bounded list of numbered events, as text."""

    __slots__ = ("_count", "_events")

    def __init__(self) -> None:
        self._events: deque[str] = deque(maxlen=SIM_HISTORY_EVENTS_MAX)
        self._count = 0

    def note(self, event: str) -> None:
        """Add one event."""
        self._count += 1
        self._events.append(f"{self._count} {event}")

    def lines(self) -> tuple[str, ...]:
        """The events that are still kept, oldest first."""
        return tuple(self._events)


@dataclass(frozen=True, slots=True)
class PodShape:
    """The sizes of a pod that the checkers need."""

    goi_entries: int  #: entries in the ring of the global order
    pbr_entries: int  #: slots in the ring of each broker
    copies_needed: int  #: replicas that must store a batch before it is durable

    def __post_init__(self) -> None:
        if min(self.goi_entries, self.pbr_entries, self.copies_needed) < 1:
            raise InvalidInputError(f"{self}: a pod needs at least one of each")


@dataclass(frozen=True, slots=True)
class Step:
    """One event and its number in the history."""

    number: int
    event: OrderEvent

    def __str__(self) -> str:
        values = ((field.name, getattr(self.event, field.name)) for field in fields(self.event))
        texts = (f"{name}={value.name if isinstance(value, IntEnum) else value}" for name, value in values)
        return " ".join((str(self.number), type(self.event).__name__, *texts))


class History:
    """The events of one run of a pod, in order."""

    __slots__ = ("_events_max", "_steps", "shape")

    def __init__(
        self, shape: PodShape, events: Iterable[OrderEvent] = (), *, events_max: int = ORDER_HISTORY_EVENTS_MAX
    ) -> None:
        self.shape = shape
        self._steps: list[Step] = []
        self._events_max = events_max
        for event in events:
            self.record(event)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        """Iterate over the steps, in order."""
        return iter(self._steps)

    def record(self, event: OrderEvent) -> Step:
        """Add an event; return its step."""
        if len(self._steps) >= self._events_max:
            raise FullError(f"the history is full with {self._events_max} events: check it and start another")
        step = Step(len(self._steps), event)
        self._steps.append(step)
        return step

    def events(self) -> tuple[OrderEvent, ...]:
        """The events without their step numbers."""
        return tuple(step.event for step in self._steps)

    def render(self) -> str:
        """Render one line for the shape of the pod, and one per event."""
        return "\n".join((f"{self.shape}", *map(str, self)))

    def to_json_lines(self) -> str:
        """Convert to one JSON object per line: the shape of the pod, then the events."""
        return "".join(f"{_object(value)}\n" for value in (self.shape, *self.events()))

    @classmethod
    def from_json_lines(cls, text: str) -> History:
        """Parse the output of `to_json_lines`."""
        first, *rest = text.splitlines() or [""]
        shape = _value(first, 1, {"PodShape": PodShape})
        return cls(shape, (_value(line, number, EVENT_TYPES) for number, line in enumerate(rest, 2)))


#: The field types of each event, computed once.
_FIELD_TYPES: Final = {kind: get_type_hints(kind) for kind in (PodShape, *EVENT_TYPES.values())}


def _object(value: PodShape | OrderEvent) -> str:
    """Encode an event or a shape as one line."""
    values = {key: each.name if isinstance(each, IntEnum) else each for key, each in asdict(value).items()}
    return json.dumps({"event": type(value).__name__, **values}, separators=(",", ":"))


def _value(line: str, number: int, kinds: dict[str, Any]) -> Any:
    """Decode the event or shape of one line."""
    try:
        values = json.loads(line)
        kind = kinds[values.pop("event")]
        types = _FIELD_TYPES[kind]
        return kind(**{key: _restored(value, types[key]) for key, value in values.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"line {number} is not a valid history line: {line[:200]!r} ({error!r})") from error


def _restored(value: Any, wanted: Any) -> Any:
    """Convert a JSON value to the type of a field; `TypeError` if it has another type."""
    if isinstance(wanted, type) and issubclass(wanted, IntEnum):
        return wanted[value]
    if wanted == tuple[int, ...] and isinstance(value, list):
        return tuple(_restored(each, int) for each in value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise TypeError(f"{value!r} is not {wanted}")
    return value

"""What happened in a simulation, in order, as text a person can read.

`EventLog` is what every simulator keeps: one line per event, the oldest forgotten first. A failing test prints
`history()`; two runs of the same seed give the same lines, which is how determinism itself is tested.

`History` is what the ordering checkers judge: the events of `order_events`, each with its step, a number over the whole
pod. Nothing is forgotten, since a checker that misses an event proves nothing; a history that is full refuses more.
It prints one line per event, and goes to JSON lines and back unchanged, so that a failing one can be kept.

The step of an event is the number of events before it.
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
    """A bounded list of numbered events."""

    __slots__ = ("_count", "_events")

    def __init__(self) -> None:
        self._events: deque[str] = deque(maxlen=SIM_HISTORY_EVENTS_MAX)
        self._count = 0

    def note(self, event: str) -> None:
        """Add one event."""
        self._count += 1
        self._events.append(f"{self._count} {event}")

    def lines(self) -> tuple[str, ...]:
        """The events still remembered, oldest first."""
        return tuple(self._events)


@dataclass(frozen=True, slots=True)
class PodShape:
    """What the numbers of a history are measured by."""

    goi_entries: int  #: entries of the ring of the global order
    pbr_entries: int  #: slots of each broker's ring
    copies_needed: int  #: replicas that must have a batch before it is durable

    def __post_init__(self) -> None:
        if min(self.goi_entries, self.pbr_entries, self.copies_needed) < 1:
            raise InvalidInputError(f"{self}: a pod has at least one of each")


@dataclass(frozen=True, slots=True)
class Step:
    """One event and its place in the history."""

    number: int
    event: OrderEvent

    def __str__(self) -> str:
        values = ((field.name, getattr(self.event, field.name)) for field in fields(self.event))
        said = (f"{name}={value.name if isinstance(value, IntEnum) else value}" for name, value in values)
        return " ".join((str(self.number), type(self.event).__name__, *said))


class History:
    """The events of one run of a pod, in the order in which they happened."""

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
        """The steps, first to last."""
        return iter(self._steps)

    def record(self, event: OrderEvent) -> Step:
        """Add an event; its step."""
        if len(self._steps) >= self._events_max:
            raise FullError(f"a history of {self._events_max} events is full: check it and begin another")
        step = Step(len(self._steps), event)
        self._steps.append(step)
        return step

    def events(self) -> tuple[OrderEvent, ...]:
        """The events without their steps."""
        return tuple(step.event for step in self._steps)

    def render(self) -> str:
        """One line for the pod, one for each event."""
        return "\n".join((f"{self.shape}", *map(str, self)))

    def to_json_lines(self) -> str:
        """One JSON object a line: the shape of the pod, then the events."""
        return "".join(f"{_object(value)}\n" for value in (self.shape, *self.events()))

    @classmethod
    def from_json_lines(cls, text: str) -> History:
        """The history that `to_json_lines` gave this for."""
        first, *rest = text.splitlines() or [""]
        shape = _value(first, 1, {"PodShape": PodShape})
        return cls(shape, (_value(line, number, EVENT_TYPES) for number, line in enumerate(rest, 2)))


#: The types of the fields of each event, looked up once.
_FIELD_TYPES: Final = {kind: get_type_hints(kind) for kind in (PodShape, *EVENT_TYPES.values())}


def _object(value: PodShape | OrderEvent) -> str:
    """The line of an event or shape."""
    said = {key: each.name if isinstance(each, IntEnum) else each for key, each in asdict(value).items()}
    return json.dumps({"event": type(value).__name__, **said}, separators=(",", ":"))


def _value(line: str, number: int, kinds: dict[str, Any]) -> Any:
    """The event or shape of a line."""
    try:
        said = json.loads(line)
        kind = kinds[said.pop("event")]
        types = _FIELD_TYPES[kind]
        return kind(**{key: _restored(value, types[key]) for key, value in said.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError(f"line {number} is no line of a history: {line[:200]!r} ({error!r})") from error


def _restored(value: Any, wanted: Any) -> Any:
    """A field's value, from what JSON has for it; `TypeError` if it is of another type."""
    if isinstance(wanted, type) and issubclass(wanted, IntEnum):
        return wanted[value]
    if wanted == tuple[int, ...] and isinstance(value, list):
        return tuple(_restored(each, int) for each in value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise TypeError(f"{value!r} is not {wanted}")
    return value

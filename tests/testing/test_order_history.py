"""Ordering histories: numbered, readable, and the same after a trip through JSON."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_model import good_history

from seawall.errors import FullError, InvalidInputError
from seawall.testing.checkers import order_events as e
from seawall.testing.checkers.history import History, PodShape, Step
from seawall.testing.checkers.order_events import EVENT_TYPES, AckStatus

SHAPE = PodShape(goi_entries=4, pbr_entries=2, copies_needed=1)
ACK = e.Answered(7, 1, 1, AckStatus.DUPLICATE, None, 0)


def test_steps_are_numbered_from_zero() -> None:
    history = History(SHAPE)
    assert history.record(ACK) == Step(0, ACK)
    assert history.record(e.Settled()) == Step(1, e.Settled())
    assert list(history) == [Step(0, ACK), Step(1, e.Settled())]
    assert (len(history), history.events()) == (2, (ACK, e.Settled()))


def test_a_history_renders_as_one_line_per_event() -> None:
    assert History(SHAPE, [ACK, e.ViewChanged(1, (0, 2)), e.Settled()]).render().splitlines() == [
        "PodShape(goi_entries=4, pbr_entries=2, copies_needed=1)",
        "0 Answered client=7 client_seq=1 level=1 status=DUPLICATE position=None base_seq=0",
        "1 ViewChanged view=1 members=(0, 2)",
        "2 Settled",
    ]


def test_a_full_history_refuses_more_and_keeps_everything() -> None:
    history = History(SHAPE, [ACK], events_max=1)
    with pytest.raises(FullError, match="start another"):
        history.record(ACK)
    assert history.events() == (ACK,)


def test_a_pod_has_at_least_one_of_each() -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        PodShape(goi_entries=4, pbr_entries=0, copies_needed=1)


def test_json_lines_are_plain() -> None:
    lines = History(SHAPE, [ACK]).to_json_lines().splitlines()
    assert lines == [
        '{"event":"PodShape","goi_entries":4,"pbr_entries":2,"copies_needed":1}',
        '{"event":"Answered","client":7,"client_seq":1,"level":1,"status":"DUPLICATE","position":null,"base_seq":0}',
    ]


@given(st.integers(0, 1 << 32))
def test_any_history_survives_a_round_trip_through_json(seed: int) -> None:
    history = good_history(seed, 60)
    text = history.to_json_lines()
    back = History.from_json_lines(text)
    assert (back.shape, back.events()) == (history.shape, history.events())
    assert (back.to_json_lines(), back.render()) == (text, history.render())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        '{"event":"Unheard"}',
        '{"event":"Settled","more":1}',
        '{"event":"Completed","broker":0}',
        '{"event":"Completed","broker":0,"index":"1"}',
        '{"event":"Completed","broker":0,"index":true}',
        '{"event":"Completed","broker":0,"index":null}',
        '{"event":"Crashed","role":"NOBODY","number":0}',
        '{"event":"ViewChanged","view":1,"members":2}',
        '{"event":"ViewChanged","view":1,"members":["0"]}',
        '{"event":"Recovered","warm":1,"kept":0,"next_position":0}',
    ],
)
def test_an_invalid_line_is_refused_with_its_number(line: str) -> None:
    text = History(SHAPE, [ACK]).to_json_lines() + line + "\n"
    with pytest.raises(InvalidInputError, match="line 3 "):
        History.from_json_lines(text)


def test_a_text_without_a_shape_is_refused() -> None:
    for text in ("", '{"event":"Settled"}\n'):
        with pytest.raises(InvalidInputError, match="line 1 "):
            History.from_json_lines(text)


@cache
def sample() -> tuple[e.OrderEvent, ...]:
    """Events of every kind."""
    return (*(step.event for seed in range(8) for step in good_history(seed)), e.GivenUp(0, 1))


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
def test_events_are_frozen_values(kind: type[e.OrderEvent]) -> None:
    events = [event for event in sample() if isinstance(event, kind)]
    assert events
    assert not hasattr(events[0], "__dict__")
    assert hash(events[0]) == hash(kind(**{field.name: getattr(events[0], field.name) for field in fields(kind)}))
    assert kind.__dataclass_params__.frozen

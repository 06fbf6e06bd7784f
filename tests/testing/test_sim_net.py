"""Messages over a simulated network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.testing import Link, SimClock, SimNet

SECOND = 1_000_000_000


def network(seed: int = 0, **settings) -> tuple[SimNet, SimClock, list]:
    """A network on which everything that arrives at host b is listed."""
    clock = SimClock()
    net = SimNet(seed, clock, Link(**settings))
    arrived: list[tuple[str, bytes]] = []
    net.register("b", lambda source, payload: arrived.append((source, payload)))
    return net, clock, arrived


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_messages_arrive_once_in_order_after_their_delay():
    net, clock, arrived = network(delay_min_ns=10, delay_max_ns=20)
    for payload in numbered(50):
        assert net.send("a", "b", payload)
    clock.advance(9)
    assert arrived == []
    clock.advance(11)
    assert arrived == [("a", payload) for payload in numbered(50)]


def test_messages_are_dropped_duplicated_and_reordered():
    net, clock, arrived = network(drop=0.3, duplicate=0.3, reorder=0.5)
    taken = [net.send("a", "b", payload) for payload in numbered(200)]
    clock.advance(SECOND)
    payloads = [payload for _, payload in arrived]
    assert 0 < taken.count(False) < 200
    assert set(payloads) == {payload for payload, sent in zip(numbered(200), taken, strict=True) if sent}
    assert len(set(payloads)) < len(payloads) <= 2 * taken.count(True)
    assert payloads != sorted(payloads, key=int)


def test_each_direction_has_its_own_settings():
    net, clock, arrived = network()
    net.set_link("a", "b", Link(drop=1.0))
    assert not net.send("a", "b", b"lost")
    assert net.send("c", "b", b"found")
    clock.advance(SECOND)
    assert arrived == [("c", b"found")]


def test_a_link_holds_a_bounded_number_of_messages():
    net, clock, arrived = network(messages_max=3)
    assert [net.send("a", "b", payload) for payload in numbered(5)] == [True, True, True, False, False]
    clock.advance(SECOND)
    assert net.send("a", "b", b"again")
    clock.advance(SECOND)
    assert [payload for _, payload in arrived] == [b"0", b"1", b"2", b"again"]


def test_a_partition_cuts_one_direction_or_both_and_drops_messages_in_flight():
    net, clock, arrived = network()
    back = []
    net.register("a", lambda _, payload: back.append(payload))
    net.send("a", "b", b"on its way")
    net.partition(["a"], ["b", "c"], both=False)
    assert not net.send("a", "b", b"cut")
    assert net.send("b", "a", b"back")
    clock.advance(SECOND)
    assert (arrived, back) == ([], [b"back"])
    net.partition(["a"], ["b"])
    assert not net.send("b", "a", b"cut too")
    net.heal(["b"], ["a"])
    assert net.send("a", "b", b"healed")
    assert not net.send("a", "c", b"still cut")
    net.heal_all()
    assert net.send("a", "c", b"for nobody")
    clock.advance(SECOND)
    assert arrived == [("a", b"healed")]
    assert any("no handler" in line for line in net.history())


def test_a_handler_may_answer_and_is_never_called_inside_its_own_send():
    clock = SimClock()
    net = SimNet(0, clock)
    depth, seen = [], []

    def handler(name: str):
        def receive(source: str, payload: bytes) -> None:
            assert not depth
            depth.append(name)
            seen.append((name, payload))
            if int(payload) < 5:
                net.send(name, source, b"%d" % (int(payload) + 1))
            depth.pop()

        return receive

    net.register("a", handler("a"))
    net.register("b", handler("b"))
    net.send("a", "b", b"0")
    clock.advance(SECOND)
    assert seen == [("b" if number % 2 == 0 else "a", b"%d" % number) for number in range(6)]


def test_a_name_belongs_to_one_handler_until_it_is_killed():
    net, clock, arrived = network()
    with pytest.raises(InvalidInputError, match="registered already"):
        net.register("b", lambda *_: None)
    net.kill("b")
    net.send("a", "b", b"x")
    clock.advance(SECOND)
    assert arrived == []
    net.register("b", lambda _, payload: arrived.append(payload))
    net.send("a", "b", b"y")
    clock.advance(SECOND)
    assert arrived == [b"y"]


@pytest.mark.parametrize(
    "settings",
    [
        {"delay_min_ns": 5, "delay_max_ns": 4},
        {"delay_min_ns": -1},
        {"drop": 1.5},
        {"reorder": -0.1},
        {"messages_max": 0},
    ],
)
def test_impossible_links_are_refused(settings):
    with pytest.raises(InvalidInputError):
        Link(**settings)


@given(st.integers(0, 10_000), st.lists(st.sampled_from(["send", "advance", "cut", "heal"]), max_size=40))
def test_the_same_seed_and_calls_give_the_same_history(seed, steps):
    def run() -> tuple[tuple[str, ...], list]:
        net, clock, arrived = network(seed, drop=0.2, duplicate=0.2, reorder=0.3)
        for number, step in enumerate(steps):
            if step == "send":
                net.send("a", "b", b"%d" % number)
            elif step == "advance":
                clock.advance(200_000)
            elif step == "cut":
                net.partition(["a"], ["b"], both=number % 2 == 0)
            else:
                net.heal_all()
        clock.advance(SECOND)
        return net.history(), arrived

    assert run() == run()

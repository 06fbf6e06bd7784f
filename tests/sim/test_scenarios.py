"""Golden scenarios: scripted runs of the simulated pod, compared with readable text files.

`make scenarios` stores the current results; a change of the text is a change that publishers and readers see.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import ALICE, BOB, PLAIN, STRONG, Scenario, Script

GOLDEN = Path(__file__).parent / "scenarios"


def in_order() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 1, 2, 3)
    script.settle()
    return script


def sorted_within_a_drain() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 2, 3, 1)
    script.settle()
    return script


def cascade() -> Script:
    script = Script()
    script.open(ALICE)
    for seq in (3, 1, 2):
        script.send(ALICE, seq)
        script.order()
    script.settle()
    return script


def chain_over_brokers() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 3, broker=0)
    script.send(ALICE, 2, broker=1)
    script.order()
    script.send(ALICE, 1, 4, broker=2)
    script.settle()
    return script


def eight_before_one_to_seven() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 8)
    script.order()
    script.send(ALICE, 1, 2, 3, 4, 5, 6, 7, broker=1)
    script.settle()
    return script


def timeout_then_late_arrival() -> Script:
    script = Script()
    script.open(ALICE, gap_ms=5)
    script.send(ALICE, 1, 3)
    script.order()
    script.wait(6)
    script.settle()
    script.send(ALICE, 2, broker=1)
    script.settle()
    return script


def repeated_through_another_broker() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 1, broker=0)
    script.settle()
    script.send(ALICE, 1, broker=1)
    script.settle()
    return script


def other_bytes_under_a_number() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 1)
    script.settle()
    script.send(ALICE, 1, broker=2, is_forged=True)
    script.settle()
    return script


def range_skipped() -> Script:
    script = Script()
    script.open(ALICE, gap_ms=5)
    script.send(ALICE, 1, 6, 9)
    script.order()
    script.wait(6)
    script.settle()
    return script


def too_much_held() -> Script:
    script = Script(hold_max=4)
    script.open(ALICE)
    script.send(ALICE, 2, 3, 4, 5, 6)
    script.settle()
    script.send(ALICE, 1, 2, 3, 4, 5, 6, broker=1)
    script.settle()
    return script


def too_many_bytes_held() -> Script:
    """Three batches fill most of a BLog: the held one is returned to its publisher, and sent again later."""
    script = Script()
    script.open(ALICE)
    script.open(BOB)
    script.send(ALICE, 2, size=16_000)
    script.settle()
    script.send(BOB, 1, 2, size=16_000)
    script.settle()
    script.send(BOB, 3, size=16_000)
    script.settle()
    script.send(BOB, 4, size=16_000)
    script.settle()
    script.send(ALICE, 1, 2, size=16_000)
    script.settle()
    return script


def stuck_slot() -> Script:
    script = Script()
    script.open(ALICE)
    broker = script.pod.brokers[0]
    assert broker is not None
    index = broker.ring.reserve(500, script.pod.clock.monotonic_ns() + 10**12)
    assert index is not None
    script.add_line(f"broker 0 claims slot {index} and says nothing more")
    script.send(ALICE, 1)
    script.order()
    script.wait(40)
    script.pod.observer.observe_broker(0)
    script.settle()
    broker.ring.abandon(index)
    script.pod.observer.observe_broker(0)
    return script


def ring_wraps() -> Script:
    script = Script()
    script.open(ALICE)
    for seq in range(1, 141):
        script.send(ALICE, seq, broker=0)
        script.settle()
    script.lines = [line for line in script.lines if any(f" {seq} " in f"{line} " for seq in (1, 64, 65, 128, 140))]
    return script


def session_fenced() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 1, 3)
    script.settle()
    script.open(ALICE)
    script.send(ALICE, 2, broker=1, epoch=1)
    script.send(ALICE, 2, 3, broker=2)
    script.settle()
    return script


def retry_beyond_the_window() -> Script:
    script = Script()
    script.open(ALICE)
    for first in range(1, 300, 20):
        script.send(ALICE, *range(first, first + 20), topic=PLAIN)
        script.settle()
    script.lines = []
    script.send(ALICE, 5, broker=1, topic=PLAIN)
    script.send(ALICE, 299, broker=1, topic=PLAIN)
    script.settle()
    return script


def mixed_orders_on_one_session() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 3, topic=STRONG)
    script.send(ALICE, 2, topic=PLAIN)
    script.order()
    script.send(ALICE, 1, broker=1, topic=PLAIN)
    script.settle()
    return script


def topic_ends_between_two_brokers() -> Script:
    script = Script()
    script.open(ALICE)
    script.open(BOB)
    script.send(ALICE, 1, broker=0, topic=PLAIN)
    script.order()
    script.add_line("the topic is deleted")
    script.pod.order(script.pod.delete_change("plain", lambda _: None))
    script.send(BOB, 1, broker=1, topic=PLAIN)
    script.settle()
    return script


def crash_between_reservation_and_writing() -> Script:
    script = Script()
    script.open(ALICE)
    script.send(ALICE, 1, 2, 3)
    script.pod.step_role(script.pod.roles[0])
    script.pod.crash_sequencer(script.pod.roles[1])
    script.add_line("the sequencer has written some of its entries")
    script.pod.restart_sequencer()
    script.settle()
    return script


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        *(in_order, sorted_within_a_drain, cascade, chain_over_brokers, eight_before_one_to_seven),
        *(timeout_then_late_arrival, repeated_through_another_broker, other_bytes_under_a_number, range_skipped),
        *(
            too_much_held,
            too_many_bytes_held,
            stuck_slot,
            ring_wraps,
            session_fenced,
            retry_beyond_the_window,
            mixed_orders_on_one_session,
        ),
        *(topic_ends_between_two_brokers, crash_between_reservation_and_writing),
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_gives_its_golden_text(name: str, request: pytest.FixtureRequest) -> None:
    text = SCENARIOS[name]().text()
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--write-scenarios"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_a_scenario() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == sorted(SCENARIOS)

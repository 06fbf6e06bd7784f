"""A writing process is killed repeatedly and loses no acked record; `make crash` kills it more often."""

from pathlib import Path

import pytest
from crash_kill import Facts, Known, check_absent, kill_cycle, note

from seawall.wire.format.codes import GapReason


@pytest.mark.parametrize("brokers", [(0, 0, 0), (2, 0, 4)])
def test_a_killed_process_loses_nothing_it_acked(tmp_path: Path, brokers: tuple[int, ...]) -> None:
    known: Known = {}
    acks = [kill_cycle(tmp_path / "data", seed, known, number) for seed, number in enumerate(brokers)]
    assert all(acks)
    assert len(known) == 7


def facts_of(*lines: bytes) -> Facts:
    known: Known = {}
    for line in lines:
        note(known, line)
    return known["disk"]


def test_the_check_finds_lost_and_reappearing_records() -> None:
    facts = facts_of(b"ack disk 1 aa bbx cc\n", b"deleting disk 3 x\n")
    check_absent("disk", facts, {1: "aa", 3: "cc"}, {}, range(1, 4))
    with pytest.raises(AssertionError, match="gone without a word"):
        check_absent("disk", facts, {3: "cc"}, {}, range(1, 4))
    with pytest.raises(AssertionError, match="is lost"):
        check_absent("disk", facts, {3: "cc"}, {1: GapReason.CRASH, 2: GapReason.CRASH}, range(1, 4))
    facts = facts_of(b"ack disk 1 aa bbx cc\n", b"deleting disk 3 x\n", b"deleted disk 3 x\n")
    with pytest.raises(AssertionError, match="are back"):
        check_absent("disk", facts, {1: "aa", 2: "bbx", 3: "cc"}, {}, range(1, 4))
    with pytest.raises(AssertionError, match="given twice"):
        facts.saw(1, "bb")

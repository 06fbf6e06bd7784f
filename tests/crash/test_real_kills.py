"""A publishing process is killed again and again; what it acked stays. `run.py --kills` does it for longer."""

from pathlib import Path

from crash_kill import kill_cycle


def test_a_killed_process_loses_nothing_it_acked(tmp_path: Path) -> None:
    known: dict[int, str] = {}
    acks = [kill_cycle(tmp_path / "data", seed, known) for seed in range(5)]
    assert all(acks)
    assert len(known) >= sum(acks)

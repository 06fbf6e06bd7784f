"""Timeouts of a connection, by given times and byte counts, without a clock or a socket."""

from __future__ import annotations

from seawall.server.connection.session import ConnectionLimits
from seawall.server.connection.timeouts import Timeouts

BOUNDS = ConnectionLimits(
    frame_time_s=10.0,
    frame_bytes_per_second=100,
    contended_frame_time_s=1.0,
    contended_frame_bytes_per_second=1_000,
    stall_s=40.0,
    contended_stall_s=5.0,
    v1_idle_s=60.0,
)


def test_checks_are_made_at_a_quarter_of_the_shortest_timeout() -> None:
    timeouts = Timeouts(BOUNDS, 0)
    assert timeouts.check_interval_s == 2.5
    timeouts.keepalive_s = 4.0
    assert timeouts.check_interval_s == 1.0


def test_a_frame_may_take_time_by_its_size_and_less_while_others_wait() -> None:
    timeouts = Timeouts(BOUNDS, 0)
    assert timeouts.exceeded_frame_time(99, 1_000, is_contended=False) is None
    timeouts.frame_incomplete(5)
    timeouts.frame_incomplete(20)
    assert timeouts.has_incomplete_frame
    assert timeouts.exceeded_frame_time(25, 1_000, is_contended=False) is None
    assert timeouts.exceeded_frame_time(26, 1_000, is_contended=False) == 20
    assert timeouts.exceeded_frame_time(8, 1_000, is_contended=True) == 2
    timeouts.frames_received(30)
    assert not timeouts.has_incomplete_frame


def test_a_pause_of_the_server_is_not_charged_to_the_peer() -> None:
    timeouts = Timeouts(BOUNDS, 0)
    timeouts.frame_incomplete(0)
    timeouts.paused(5)
    timeouts.resumed(105)
    assert timeouts.exceeded_frame_time(109, 0, is_contended=False) is None
    assert timeouts.exceeded_frame_time(111, 0, is_contended=False) == 10
    timeouts.frame_dropped()
    assert not timeouts.is_idle(165)
    assert timeouts.is_idle(166)


def test_a_silent_peer_is_pinged_and_then_idle() -> None:
    timeouts = Timeouts(BOUNDS, 0)
    assert not timeouts.is_ping_due(1_000)
    timeouts.keepalive_s, timeouts.idle_s = 10.0, 35.0
    assert [now for now in (9, 11) if timeouts.is_ping_due(now)] == [11]
    timeouts.pinged(11)
    assert [now for now in (20, 22) if timeouts.is_ping_due(now)] == [22]
    assert [now for now in (34, 36) if timeouts.is_idle(now)] == [36]
    timeouts.active_at(30)
    timeouts.active_at(20)
    assert [now for now in (64, 66) if timeouts.is_idle(now)] == [66]
    timeouts.idle_s = None
    assert not timeouts.is_idle(1e9)


def test_a_peer_that_receives_nothing_is_stalled() -> None:
    timeouts = Timeouts(BOUNDS, 0)
    assert not timeouts.is_stalled(100, 0, 0, is_contended=False)
    assert not timeouts.is_stalled(139, 0, 1, is_contended=False)
    assert timeouts.is_stalled(141, 0, 1, is_contended=False)
    assert not timeouts.is_stalled(142, 1, 1, is_contended=False)
    assert not timeouts.is_stalled(180, 1, 1, is_contended=False)


def test_a_peer_that_receives_little_is_stalled_while_others_wait() -> None:
    timeouts = Timeouts(BOUNDS, 0)
    assert not timeouts.is_stalled(2, 200, 1, is_contended=True)
    assert not timeouts.is_stalled(6, 300, 1, is_contended=True)
    assert timeouts.is_stalled(8, 300, 1, is_contended=True)

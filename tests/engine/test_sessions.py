"""Sessions: planned, logged and applied; replaying the log decides the same, even after damage."""

from __future__ import annotations

import random

import numpy as np
import pytest

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Position, SessionEpoch
from seawall.engine.store.sessions import Sessions
from seawall.errors import ConflictError, CorruptionError, FullError, InvalidInputError
from seawall.kernels.admission.client_window import CLIENT_SEQ_MAX
from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.sequencer.client_window import BatchResult, ClientWindow, WindowCode
from seawall.storage.control.codec import ClientRow
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.wire.format.codes import AckStatus

SMALL = 5


def rows_of(*batches: tuple[int, int], epoch: int = 1, position: int = 0) -> WalRows:
    """Batches of a log, by client and client seq."""
    rows = np.zeros(len(batches), WAL_ROW)
    for index, (client_id, client_seq) in enumerate(batches):
        row = rows[index : index + 1]
        row["client_id"], row["client_seq"], row["session_epoch"] = client_id, client_seq, epoch
        row["position"], row["base_seq"], row["count"] = position + index, 10 + position + index, 1
        row["timestamp_ns"], row["block_crc"] = 1_000 + index, client_seq & 0xFFFF_FFFF
    return rows


def opened(*client_ids: int, clients_max: int = SMALL) -> Sessions:
    sessions = Sessions(clients_max=clients_max)
    for client_id in client_ids:
        sessions.apply(sessions.open(ClientId(client_id), ClientSeq(1))[2])
    return sessions


def code(sessions: Sessions, client_id: int, client_seq: int, epoch: int = 1) -> WindowCode:
    window = sessions.window
    return window.check(ClientId(client_id), SessionEpoch(epoch), ClientSeq(client_seq), client_seq & 0xFFFF_FFFF).code


def snapshot_of(sections: dict[SectionKind, bytes], created_ns: int = 0) -> Snapshot:
    return Snapshot(Position(0), 0, created_ns, sections)


def state(sessions: Sessions, client_id: int) -> tuple[int, int, int]:
    found = sessions.window.state(ClientId(client_id))
    return found.session_epoch, found.next_expected, found.highest_seen


# --- opening ---------------------------------------------------------------------------------------------------------


def test_opening_is_planned_then_applied() -> None:
    sessions = Sessions(clients_max=SMALL)
    epoch, next_seq, control = sessions.open(ClientId(7), ClientSeq(40))
    assert (epoch, next_seq, control.client_id, control.previous) == (1, 40, 7, None)
    assert len(sessions) == 0
    sessions.apply(control)
    assert (len(sessions), state(sessions, 7)) == (1, (1, 40, 39))
    assert sessions.rows() == control.row


def test_a_returning_publisher_continues_and_fences() -> None:
    sessions = opened(7)
    sessions.decide_run(rows_of((7, 1), (7, 2)))
    before = sessions.rows()
    epoch, next_seq, control = sessions.open(ClientId(7), ClientSeq(90))
    assert (epoch, next_seq, control.previous) == (2, 3, before)
    assert sessions.rows() == before
    sessions.apply(control)
    assert sessions.rows() == control.row
    assert code(sessions, 7, 2) == WindowCode.FENCED
    verdict = sessions.window.check(ClientId(7), SessionEpoch(2), ClientSeq(2), 2)
    assert verdict.code == WindowCode.DUPLICATE
    assert verdict.original is not None
    assert verdict.original.base_seq == 11, "results are still known"


def test_invalid_sessions_are_refused() -> None:
    sessions = opened(1, 2, clients_max=2)
    with pytest.raises(FullError, match="2 publishers"):
        sessions.open(ClientId(3), ClientSeq(1))
    sessions.open(ClientId(2), ClientSeq(1))
    with pytest.raises(InvalidInputError):
        sessions.open(ClientId(1 << 63), ClientSeq(1))
    for start in (0, limits.SESSION_START_SEQ_MAX + 1):
        with pytest.raises(InvalidInputError, match="start seq"):
            opened(1).open(ClientId(3), ClientSeq(start))
    last = Sessions(clients_max=1)
    last.window.open(ClientId(1), SessionEpoch((1 << 63) - 1), ClientSeq(1))
    with pytest.raises(ConflictError, match="has used all its session epochs"):
        last.open(ClientId(1), ClientSeq(1))


# --- rows of the log -------------------------------------------------------------------------------------------------


def test_a_row_planned_before_later_batches_undoes_nothing() -> None:
    sessions = opened(7)
    sessions.decide_run(rows_of((7, 1)))
    _, _, control = sessions.open(ClientId(7), ClientSeq(1))
    sessions.decide_run(rows_of((7, 2), (7, 4)))
    sessions.apply(control)
    assert state(sessions, 7) == (2, 3, 4)
    assert [code(sessions, 7, seq, 2).name for seq in (1, 2, 3, 4)] == ["DUPLICATE", "DUPLICATE", "NEW", "DUPLICATE"]
    sessions.apply(control)
    assert state(sessions, 7) == (2, 3, 4)


def test_a_row_with_more_decisions_is_adopted() -> None:
    """Refused seqs leave no batch, and damage loses some: the row of the next session has both."""
    live, replayed = opened(7), opened(7)
    live.decide_run(rows_of((7, 1), (7, 2)))
    live.window.decide(ClientId(7), ClientSeq(3), BatchResult(0, 0, 0, 0, AckStatus.REJECTED, 5))
    live.decide_run(rows_of((7, 4)))
    _, _, control = live.open(ClientId(7), ClientSeq(1))
    live.apply(control)
    replayed.decide_run(rows_of((7, 1), (7, 4)))
    assert state(replayed, 7) == (1, 2, 4)
    replayed.apply(control)
    assert replayed.rows() == live.rows()
    found = [code(replayed, 7, seq, 2).name for seq in (1, 2, 3, 4)]
    assert found == ["DUPLICATE", "DUPLICATE", "SKIPPED", "DUPLICATE"]


def test_two_rows_far_apart_are_merged_within_the_window() -> None:
    old, new = opened(7), opened(7)
    old.decide_run(rows_of(*((7, seq) for seq in (1, 2, 5))))
    new.decide_run(rows_of(*((7, seq) for seq in range(1, 601))))
    ahead, behind = new.rows(), old.rows()
    old.apply(ClientRow(ClientId(7), ahead))
    new.apply(ClientRow(ClientId(7), behind))
    assert old.rows() == new.rows() == ahead


def test_a_merged_row_continues_after_both_rows() -> None:
    replayed, live = opened(7), opened(7)
    replayed.decide_run(rows_of((7, 1), (7, 3)))
    live.decide_run(rows_of((7, 1), (7, 2)))
    replayed.apply(ClientRow(ClientId(7), live.rows()))
    assert state(replayed, 7) == (1, 4, 3)


def test_an_invalid_row_is_damage() -> None:
    sessions = opened(7)
    row = sessions.rows()
    with pytest.raises(CorruptionError, match="another client"):
        sessions.apply(ClientRow(ClientId(8), row))
    with pytest.raises(CorruptionError, match="is not a valid window state"):
        sessions.apply(ClientRow(ClientId(8), (8).to_bytes(8, "little") + bytes(56)))


# --- batches of the log ----------------------------------------------------------------------------------------------


def test_batches_without_a_session_are_skipped() -> None:
    sessions = Sessions(clients_max=SMALL)
    sessions.decide_run(rows_of((1 << 63, 0), (2**64 - 1, 5), (0, 1)))
    assert len(sessions) == 0


def test_a_run_decides_the_same_as_a_window_one_by_one() -> None:
    chance = random.Random(3)
    seqs = {client_id: list(range(1, 400)) for client_id in (1, 2, 3)}
    batches = []
    while any(seqs.values()):
        client_id = chance.choice([client_id for client_id, left in seqs.items() if left])
        index = min(chance.randrange(4), len(seqs[client_id]) - 1)
        batches.append((client_id, seqs[client_id].pop(index)))
    at_once, window = opened(1, 2, 3), ClientWindow(clients_max=SMALL)
    window.import_rows(at_once.rows())
    rows = rows_of(*batches)
    for start in range(0, len(rows), 100):
        at_once.decide_run(rows[start : start + 100])
    for row in rows:
        result = BatchResult(
            int(row["block_crc"]), int(row["position"]), int(row["base_seq"]), int(row["timestamp_ns"])
        )
        assert (
            window.decide(ClientId(int(row["client_id"])), ClientSeq(int(row["client_seq"])), result) == WindowCode.NEW
        )
    assert at_once.rows() == window.export_rows()
    for client_id, client_seq in batches[-50:]:
        asked = (ClientId(client_id), SessionEpoch(1), ClientSeq(client_seq), client_seq)
        assert at_once.window.check(*asked) == window.check(*asked)


def test_a_publisher_whose_row_is_lost_begins_with_its_first_batch() -> None:
    sessions = Sessions(clients_max=SMALL)
    sessions.decide_run(rows_of((7, 40), (7, 41), (8, 3), (7, 43), epoch=6))
    assert (state(sessions, 7), state(sessions, 8)) == ((6, 42, 43), (6, 4, 3))
    assert code(sessions, 7, 40, 6) == WindowCode.DUPLICATE
    assert code(sessions, 7, 39, 6) == WindowCode.SKIPPED
    sessions.decide_run(rows_of((9, 1), epoch=0))
    assert state(sessions, 9) == (1, 2, 1)


def test_a_session_whose_opening_is_lost_still_fences_the_one_before() -> None:
    sessions = opened(7)
    sessions.decide_run(rows_of((7, 1)))
    sessions.decide_run(rows_of((7, 2), (7, 3), epoch=4))
    assert state(sessions, 7) == (4, 4, 3)
    assert sessions.open(ClientId(7), ClientSeq(1))[0] == 5
    sessions.decide_run(rows_of((7, 4), epoch=2))
    assert state(sessions, 7) == (4, 5, 4), "an epoch never goes back"


def test_a_seq_beyond_the_window_moves_it() -> None:
    """More than 256 batches were refused or lost; a batch in the log was accepted all the same."""
    sessions = opened(7)
    sessions.decide_run(rows_of((7, 1), (7, 600), (7, 601)))
    assert state(sessions, 7) == (1, 346, 601)
    assert [code(sessions, 7, seq).name for seq in (1, 346, 600, 601)] == ["OUTSIDE", "NEW", "DUPLICATE", "DUPLICATE"]
    sessions.decide_run(rows_of((7, 5)))
    assert state(sessions, 7) == (1, 346, 601)


@pytest.mark.parametrize("client_seq", [CLIENT_SEQ_MAX + 1, 2**63, 2**64 - 1, 0])
def test_an_invalid_client_seq_is_skipped(client_seq: int) -> None:
    sessions = opened(7)
    sessions.decide_run(rows_of((7, client_seq), (8, client_seq), (7, 1)))
    assert (state(sessions, 7), len(sessions)) == ((1, 2, 1), 1)


def test_a_full_window_drops_the_longest_idle_client() -> None:
    sessions = opened(1, 2, 3, clients_max=3)
    sessions.decide_run(rows_of((1, 1), (3, 1)))
    sessions.decide_run(rows_of((4, 9)))
    assert [client_id for client_id in (1, 2, 3, 4) if ClientId(client_id) in sessions.window] == [1, 3, 4]
    control = opened(5).open(ClientId(5), ClientSeq(1))[2]
    sessions.apply(control)
    assert [client_id for client_id in (1, 3, 4, 5) if ClientId(client_id) in sessions.window] == [3, 4, 5]


def test_rows_are_loaded_again() -> None:
    sessions = opened(1, 2)
    sessions.decide_run(rows_of((1, 1), (2, 1), (2, 2)))
    again = Sessions(clients_max=SMALL)
    again.load(snapshot_of({}))
    assert len(again) == 0
    again.load(snapshot_of(sessions.sections()))
    assert again.rows() == sessions.rows()
    for broken in ({SectionKind.CLIENT_ROWS: bytes(63)}, sessions.sections() | {SectionKind.SESSIONS: bytes(17)}):
        with pytest.raises(CorruptionError):
            Sessions(clients_max=SMALL).load(snapshot_of(broken))


# --- decisions without records --------------------------------------------------------------------------------------


def nop(client_id: int, client_seq: int, *, decides: bool = True) -> OrderNop:
    return OrderNop(3, AckStatus.REJECTED, 0x13, client_id, client_seq, client_seq & 0xFFFF_FFFF, decides=decides)


def test_only_a_refusal_decides_its_client_seq() -> None:
    sessions = opened(7)
    sessions.refuse(nop(7, 1, decides=False), 5)
    assert state(sessions, 7) == (1, 1, 0)
    sessions.refuse(nop(7, 1), 5)
    assert (state(sessions, 7), code(sessions, 7, 1)) == ((1, 2, 1), WindowCode.REFUSED)
    sessions.refuse(nop(7, 3), 6)
    assert (state(sessions, 7), code(sessions, 7, 2)) == ((1, 2, 3), WindowCode.NEW)
    sessions.refuse(nop(8, 1), 7)
    assert len(sessions) == 1


def test_a_refusal_beyond_the_window_proves_what_is_below_it() -> None:
    sessions = opened(7)
    sessions.refuse(nop(7, 1_000), 5)
    assert (state(sessions, 7), code(sessions, 7, 1_000)) == ((1, 745, 1_000), WindowCode.REFUSED)
    before = sessions.rows()
    sessions.refuse(nop(7, 3), 6)
    sessions.refuse(nop(7, CLIENT_SEQ_MAX + 5), 7)
    assert sessions.rows() == before


def test_skipped_client_seqs_are_abandoned() -> None:
    sessions = opened(7)
    sessions.decide_run(rows_of((7, 1), (7, 4)))
    sessions.skip(OrderSkip(3, 7, 2, 2))
    assert (state(sessions, 7), code(sessions, 7, 3)) == ((1, 5, 4), WindowCode.SKIPPED)
    sessions.skip(OrderSkip(3, 8, 2, 2))
    assert len(sessions) == 1
    sessions.skip(OrderSkip(3, 7, CLIENT_SEQ_MAX, 1))
    assert state(sessions, 7)[1] == CLIENT_SEQ_MAX

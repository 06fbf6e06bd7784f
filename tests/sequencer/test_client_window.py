"""The windows of publishers against a model of plain dicts, and rows exported to storage and imported again."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, TimestampNs
from seawall.errors import ConflictError, CorruptionError, FullError, InvalidInputError, LimitError, NotFoundError
from seawall.kernels.admission.client_window import CLIENT_SEQ_MAX
from seawall.sequencer.client_window import (
    WINDOW_BATCH,
    WINDOW_RESULT,
    BatchResult,
    ClientState,
    ClientWindow,
    Verdict,
    WindowCode,
    table_slots,
)
from seawall.wire.format.codes import AckStatus, ErrorCode

ONE, TWO, THREE = ClientId(1), ClientId(2), ClientId(2**63 - 1)


def result(number: int, *, crc: int = 0, status: AckStatus = AckStatus.OK) -> BatchResult:
    reason = ErrorCode.TOPIC_DELETED if status is AckStatus.REJECTED else 0
    return BatchResult(crc, Position(number), Seq(number + 1), TimestampNs(number + 2), status, reason)


def window_with(*client_ids: ClientId, start: int = 1, clients_max: int = 8, remembered_max: int = 4) -> ClientWindow:
    window = ClientWindow(clients_max=clients_max, remembered_max=remembered_max)
    for client_id in client_ids:
        window.open(client_id, SessionEpoch(1), ClientSeq(start))
    return window


def check(window: ClientWindow, client_id: ClientId, seq: int, crc: int = 0, epoch: int = 1) -> Verdict:
    return window.check(client_id, SessionEpoch(epoch), ClientSeq(seq), crc)


def decide(window: ClientWindow, client_id: ClientId, seq: int, outcome: BatchResult | None = None) -> WindowCode:
    return window.decide(client_id, ClientSeq(seq), outcome or result(seq))


@dataclass
class ModelClient:
    """Every fate there ever was; nothing is forgotten but by the size of the window."""

    epoch: int
    next_expected: int
    highest: int
    fates: dict[int, BatchResult] = field(default_factory=dict)

    def judge(self, epoch: int, seq: int, crc: int) -> Verdict:
        if epoch % 2**32 != self.epoch % 2**32:
            return Verdict(WindowCode.FENCED)
        if not 1 <= seq <= CLIENT_SEQ_MAX or not self.highest - 255 <= seq <= self.next_expected + 255:
            return Verdict(WindowCode.OUTSIDE)
        fate = self.fates.get(seq)
        if fate is None:
            return Verdict(WindowCode.SKIPPED if seq < self.next_expected else WindowCode.NEW)
        if fate.block_crc != crc:
            return Verdict(WindowCode.MISMATCH)
        return Verdict(WindowCode.DUPLICATE if fate.status is AckStatus.OK else WindowCode.REFUSED, fate)

    def advance(self) -> None:
        while self.next_expected in self.fates:
            self.next_expected += 1


class WindowMachine(RuleBasedStateMachine):
    """Publishers that repeat, run ahead, skip, reopen, leave and come back; all of them remembered."""

    @initialize()
    def make(self) -> None:
        self.window = ClientWindow(clients_max=3, remembered_max=3)
        self.model: dict[ClientId, ModelClient] = {}
        self.number = 0

    clients = st.sampled_from([ONE, TWO, THREE])
    offsets = st.one_of(st.integers(-4, 4), st.sampled_from([-256, -255, -254, 254, 255, 256]))

    def seq_near(self, client_id: ClientId, offset: int) -> int:
        client = self.model.get(client_id)
        return max(0, (client.next_expected if client else 1) + offset)

    @rule(client_id=clients, raised=st.integers(0, 2), start=st.sampled_from([1, 2, 500]))
    def open(self, client_id: ClientId, raised: int, start: int) -> None:
        client = self.model.get(client_id)
        epoch = SessionEpoch((client.epoch if client else 1) + raised)
        if client is None:
            assert self.window.open(client_id, epoch, ClientSeq(start)) == start
            self.model[client_id] = ModelClient(epoch, start, start - 1)
        elif raised == 0:
            with pytest.raises(ConflictError):
                self.window.open(client_id, epoch, ClientSeq(start))
        else:
            assert self.window.open(client_id, epoch, ClientSeq(start)) == client.next_expected
            client.epoch = epoch

    @rule(client_id=clients, offset=offsets, crc=st.integers(0, 1), stale=st.sampled_from([0, 0, 0, 1, 2**32]))
    def check(self, client_id: ClientId, offset: int, crc: int, stale: int) -> None:
        seq = self.seq_near(client_id, offset)
        client = self.model.get(client_id)
        if client is None:
            assert check(self.window, client_id, seq) == Verdict(WindowCode.UNKNOWN_CLIENT)
        else:
            epoch = client.epoch + stale
            assert check(self.window, client_id, seq, crc, epoch) == client.judge(epoch, seq, crc)

    @rule(
        client_id=clients,
        offset=offsets,
        crc=st.integers(0, 1),
        status=st.sampled_from([AckStatus.OK, AckStatus.OK, AckStatus.REJECTED]),
    )
    def decide(self, client_id: ClientId, offset: int, crc: int, status: AckStatus) -> None:
        seq = self.seq_near(client_id, offset)
        fate = result(self.number, crc=crc, status=status)
        self.number += 1
        code = decide(self.window, client_id, seq, fate)
        client = self.model.get(client_id)
        if client is None:
            assert code is WindowCode.UNKNOWN_CLIENT
            return
        known = client.fates.get(seq)
        assert code is client.judge(client.epoch, seq, known.block_crc if known else 0).code
        if code is WindowCode.NEW:
            client.fates[seq] = fate
            client.highest = max(client.highest, seq)
            client.advance()

    @rule(client_id=clients, offset=st.one_of(st.integers(-2, 6), st.sampled_from([255, 256, 300])))
    def skip(self, client_id: ClientId, offset: int) -> None:
        seq = max(1, self.seq_near(client_id, offset))
        client = self.model.get(client_id)
        if client is None:
            with pytest.raises(NotFoundError):
                self.window.skip_to(client_id, ClientSeq(seq))
            return
        assert self.window.skip_to(client_id, ClientSeq(seq)) == (seq > client.next_expected)
        if seq > client.next_expected:
            client.next_expected = seq
            client.highest = max(client.highest, seq - 1)
            client.advance()

    @rule(client_id=clients)
    def leave_and_come_back(self, client_id: ClientId) -> None:
        """A row has only stored seqs; refused ones are open again, or skipped; no result is remembered."""
        if client_id not in self.model:
            with pytest.raises(NotFoundError):
                self.window.forget(client_id)
            return
        stored = self.window.export_rows([client_id])
        self.window.forget(client_id)
        assert client_id not in self.window
        assert self.window.import_rows(stored) == 1
        assert self.window.export_rows([client_id]) == stored
        client = self.model[client_id]
        kept = {seq for seq, fate in client.fates.items() if fate.status is AckStatus.OK}
        for seq in range(max(1, client.highest - 255), client.highest + 1):
            verdict = check(self.window, client_id, seq, 0, client.epoch)
            open_again = WindowCode.NEW if seq >= client.next_expected else WindowCode.SKIPPED
            assert verdict == Verdict(WindowCode.DUPLICATE if seq in kept else open_again)
        self.window.forget(client_id)
        del self.model[client_id]

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "window"):
            return
        assert len(self.window) == len(self.model)
        for client_id, client in self.model.items():
            expected = ClientState(
                client_id, SessionEpoch(client.epoch), ClientSeq(client.next_expected), ClientSeq(client.highest)
            )
            assert self.window.state(client_id) == expected
            assert client.next_expected - 1 <= client.highest <= client.next_expected + 255, "INV-WINDOW-EXACT"


WindowMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
TestWindow = WindowMachine.TestCase


def test_a_duplicate_gets_the_numbers_of_the_original() -> None:
    window = window_with(ONE)
    original = result(70, crc=9)
    assert check(window, ONE, 1, 9) == Verdict(WindowCode.NEW)
    assert decide(window, ONE, 1, original) is WindowCode.NEW
    assert check(window, ONE, 1, 9) == Verdict(WindowCode.DUPLICATE, original)
    assert check(window, ONE, 1, 8) == Verdict(WindowCode.MISMATCH)
    assert decide(window, ONE, 1, original) is WindowCode.DUPLICATE


def test_only_the_publishers_decided_last_are_remembered() -> None:
    window = window_with(ONE, TWO, THREE, remembered_max=2)
    for client_id in (ONE, TWO, THREE):
        decide(window, client_id, 1)
    known = [check(window, client_id, 1).original is not None for client_id in (ONE, TWO, THREE)]
    assert known == [False, True, True]
    assert check(window, ONE, 1).code is WindowCode.DUPLICATE


def test_a_forgotten_publisher_releases_its_memory() -> None:
    window = window_with(ONE, TWO, remembered_max=2)
    decide(window, ONE, 1)
    decide(window, TWO, 1)
    window.forget(ONE)
    window.open(THREE, SessionEpoch(1), ClientSeq(1))
    decide(window, THREE, 1, result(5))
    assert check(window, THREE, 1) == Verdict(WindowCode.DUPLICATE, result(5))
    assert check(window, TWO, 1).original is not None
    assert check(window, ONE, 1).code is WindowCode.UNKNOWN_CLIENT


def test_a_publisher_decided_again_is_spared_once() -> None:
    window = window_with(ONE, TWO, THREE, ClientId(4), remembered_max=2)
    for client_id, seq in ((ONE, 1), (TWO, 1), (ONE, 2), (THREE, 1)):
        decide(window, client_id, seq)
    known = [check(window, client_id, 1).original is not None for client_id in (ONE, TWO, THREE)]
    assert known == [True, False, True]
    decide(window, ClientId(4), 1)
    known = [check(window, client_id, 1).original is not None for client_id in (ONE, TWO, THREE, ClientId(4))]
    assert known == [False, False, True, True]


def test_forgetting_an_evicted_publisher_keeps_the_memory_of_its_successor() -> None:
    window = window_with(ONE, TWO, remembered_max=1)
    decide(window, ONE, 1)
    decide(window, TWO, 1, result(5))
    window.skip_to(ONE, ClientSeq(257 + 1))
    window.forget(ONE)
    assert check(window, TWO, 1) == Verdict(WindowCode.DUPLICATE, result(5))


def test_a_row_is_used_again_and_starts_clean() -> None:
    window = window_with(ONE, clients_max=1)
    decide(window, ONE, 1)
    decide(window, ONE, 3, result(3, status=AckStatus.REJECTED))
    with pytest.raises(FullError, match="1 clients are in memory"):
        window.open(TWO, SessionEpoch(1), ClientSeq(1))
    window.forget(ONE)
    window.open(TWO, SessionEpoch(1), ClientSeq(1))
    assert [check(window, TWO, seq).code for seq in (1, 2, 3)] == [WindowCode.NEW] * 3
    assert window.state(TWO) == ClientState(TWO, SessionEpoch(1), ClientSeq(1), ClientSeq(0))


def test_clients_without_a_session_pass() -> None:
    window = window_with()
    synthetic = ClientId(2**63 + 4)
    for seq in (0, 1, 1, 2**64 - 1):
        assert check(window, synthetic, seq, epoch=0) == Verdict(WindowCode.NEW)
        assert decide(window, synthetic, seq, result(1)) is WindowCode.NEW
    assert len(window) == 0
    with pytest.raises(InvalidInputError):
        window.open(synthetic, SessionEpoch(1), ClientSeq(1))


@pytest.mark.parametrize("seq", [0, CLIENT_SEQ_MAX + 1, 2**63, 2**64 - 1])
def test_a_client_seq_beyond_all_bounds_is_outside(seq: int) -> None:
    window = window_with(ONE)
    assert check(window, ONE, seq).code is WindowCode.OUTSIDE
    assert decide(window, ONE, seq, result(1)) is WindowCode.OUTSIDE
    with pytest.raises(LimitError):
        window.skip_to(ONE, ClientSeq(seq))
    with pytest.raises(LimitError):
        window.open(TWO, SessionEpoch(1), ClientSeq(seq))
    assert TWO not in window


@pytest.mark.parametrize("epoch", [0, 2**63])
def test_a_session_epoch_has_its_range(epoch: int) -> None:
    with pytest.raises(InvalidInputError, match="session epoch"):
        window_with().open(ONE, SessionEpoch(epoch), ClientSeq(1))


@pytest.mark.parametrize(("clients_max", "remembered_max"), [(0, 1), (1, 0)])
def test_a_window_without_space_is_refused(clients_max: int, remembered_max: int) -> None:
    with pytest.raises(InvalidInputError):
        ClientWindow(clients_max=clients_max, remembered_max=remembered_max)


def test_a_table_has_space_for_its_maximum() -> None:
    for entries in (*range(1, 200), 100_000, limits.CLIENTS_MAX):
        slots = table_slots(entries)
        assert slots & (slots - 1) == 0
        assert entries * 4 <= slots * 3 < (entries + 4) * 8
    window = ClientWindow(clients_max=48)
    for number in range(1, 49):
        window.open(ClientId(number), SessionEpoch(1), ClientSeq(1))
    assert len(window) == 48


def test_the_longest_idle_come_first() -> None:
    window = window_with(THREE, TWO, ONE)
    decide(window, TWO, 1)
    decide(window, THREE, 1)
    decide(window, TWO, 2)
    assert window.longest_idle(2) == [ONE, THREE]
    assert window.longest_idle(9) == [ONE, THREE, TWO]
    window.forget(ONE)
    assert window.longest_idle(1) == [THREE]


def test_many_at_once() -> None:
    window = window_with(ONE)
    batches = np.array([(1, 1, 1, 7), (1, 2, 1, 7), (9, 1, 1, 7), (1, 1, 1, 7)], WINDOW_BATCH)
    codes, answers = window.check_many(batches)
    assert codes.tolist() == [0, 0, WindowCode.UNKNOWN_CLIENT, 0]
    outcomes = np.zeros(4, WINDOW_RESULT)
    outcomes["block_crc"], outcomes["position"] = 7, [10, 11, 12, 13]
    assert window.decide_many(batches, outcomes).tolist() == [0, 0, WindowCode.UNKNOWN_CLIENT, WindowCode.DUPLICATE]
    codes, answers = window.check_many(batches)
    assert codes.tolist() == [WindowCode.DUPLICATE, WindowCode.DUPLICATE, WindowCode.UNKNOWN_CLIENT, 1]
    assert answers["position"].tolist() == [10, 11, 2**64 - 1, 10]
    with pytest.raises(InvalidInputError, match="one for each"):
        window.decide_many(batches, outcomes[:3])


# --- rows ----------------------------------------------------------------------------------------------------------


def test_a_row_has_the_bytes_of_its_table() -> None:
    window = window_with(ONE, start=300)
    window.open(ONE, SessionEpoch(6), ClientSeq(1))
    decide(window, ONE, 300)
    decide(window, ONE, 302)
    decide(window, ONE, 303, result(1, status=AckStatus.REJECTED))
    row = window.export_rows()
    assert len(row) == limits.CLIENT_ROW_SIZE
    fields = [int.from_bytes(row[at : at + 8], "little") for at in range(0, 32, 8)]
    assert fields == [1, 6, 301, 303]
    assert int.from_bytes(row[32:], "little") == 1 << 300 % 256 | 1 << 302 % 256


def test_all_rows_are_exported_and_imported_in_client_order() -> None:
    window = window_with(THREE, ONE, TWO)
    decide(window, TWO, 1)
    rows = window.export_rows()
    assert rows == b"".join(window.export_rows([client_id]) for client_id in (ONE, TWO, THREE))
    other = window_with()
    assert other.import_rows(memoryview(rows)) == 3
    assert other.export_rows() == rows
    assert check(other, TWO, 1) == Verdict(WindowCode.DUPLICATE)
    assert window_with().export_rows() == b""
    assert window_with().import_rows(b"") == 0


def row(client: int = 1, epoch: int = 1, next_expected: int = 1, highest: int = 0, bitmap: int = 0) -> bytes:
    numbers = (client, epoch, next_expected, highest)
    return b"".join(number.to_bytes(8, "little") for number in numbers) + bitmap.to_bytes(32, "little")


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        row()[:-1],
        row(client=0),
        row(client=2**63),
        row(epoch=0),
        row(epoch=2**63),
        row(next_expected=0),
        row(next_expected=2**64 - 1, highest=2**64 - 1),
        row(next_expected=CLIENT_SEQ_MAX + 2, highest=CLIENT_SEQ_MAX),
        row(next_expected=1, highest=2**64 - 1),
        row(next_expected=3, highest=1),
        row(next_expected=1, highest=257),
        row(next_expected=5, highest=9, bitmap=1 << 5),
        row() + row(),
        row(client=2) + row(client=0),
    ],
)
def test_an_impossible_row_is_corruption(data: bytes) -> None:
    window = window_with()
    with pytest.raises(CorruptionError, match="client row"):
        window.import_rows(data)
    assert len(window) == 0


@pytest.mark.parametrize(
    "data",
    [
        row(next_expected=1, highest=256),
        row(next_expected=257, highest=256, bitmap=2**256 - 1),
        row(next_expected=CLIENT_SEQ_MAX + 1, highest=CLIENT_SEQ_MAX),
        row(client=2**63 - 1, epoch=2**63 - 1),
    ],
)
def test_rows_at_the_bounds_are_accepted(data: bytes) -> None:
    window = window_with()
    assert window.import_rows(data) == 1
    assert window.export_rows() == data


def test_rows_are_imported_all_or_none() -> None:
    window = window_with(TWO, clients_max=2)
    for data, error in ((row(client=1) + row(client=2), ConflictError), (row(client=1) + row(client=3), FullError)):
        with pytest.raises(error):
            window.import_rows(data)
        assert len(window) == 1
        assert ONE not in window


def test_an_unknown_client_is_not_found() -> None:
    window = window_with()
    for call in (window.state, window.forget, lambda client_id: window.export_rows([client_id])):
        with pytest.raises(NotFoundError, match="0000000000000001 is not in memory"):
            call(ONE)


def test_rows_in_memory_are_those_of_all_publishers() -> None:
    window = window_with(TWO, ONE, THREE)
    decide(window, ONE, 1)
    assert window.rows_in_memory().tobytes() == window.export_rows([TWO, ONE, THREE])
    window.forget(ONE)
    assert window.rows_in_memory().tobytes() == window.export_rows([TWO, THREE])
    assert window_with().rows_in_memory().size == 0

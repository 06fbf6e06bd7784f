"""An order worker, one property at a time; `test_order_worker_model.py` checks them together."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest
from order_pod import SYNTHETIC, UNKNOWN, Pod, StoredRows, small_fabric, taken_from

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.errors import ConflictError, InvalidInputError
from seawall.fabric import records
from seawall.kernels.ordering.collecting import worker_of
from seawall.kernels.ordering.holding import PREFETCH_MAX
from seawall.kernels.runtime.rings import CONSUMED, PRODUCED
from seawall.sequencer.collector import Collector
from seawall.sequencer.order_worker import OrderSettings, OrderWorker, SessionOpening
from seawall.sequencer.shared import FLOOR, SequencerShared
from seawall.wire.format.codes import AckStatus, ErrorCode

ME = 9
STRONG = records.FLAG_STRONG_ORDER
RETRY = int(AckStatus.RETRY)
SMALL = OrderSettings(drain_refs=32, hold_max=10, pages=2, silence_ns=1_000, clients_max=2, remembered_max=2)


def refused(reason: int) -> int:
    return int(AckStatus.REJECTED) | reason << 8


def opened(pod: Pod, client: int = ME, epoch: int = 1, **policy: int) -> SessionOpening | None:
    return pod.worker.open_session(ClientId(client), SessionEpoch(epoch), ClientSeq(1), **policy)


def pod_with_session(settings: OrderSettings | None = SMALL, **policy: int) -> Pod:
    pod = Pod(settings=settings)
    assert opened(pod, **policy) == SessionOpening(ClientSeq(1), 0)
    pod.entries()
    return pod


def seqs(pod: Pod) -> list[int]:
    return [int(entry["client_seq"]) for entry in pod.entries()]


def outcomes(pod: Pod) -> list[tuple[int, int]]:
    """Seq and record count, which of a NOP is status and reason, of what was written."""
    return [(int(entry["client_seq"]), int(entry["record_count"])) for entry in pod.entries()]


def test_strong_order_is_the_clients_own_whatever_the_arrival() -> None:
    """INV-ORDER-CLIENT."""
    pod = pod_with_session()
    for broker, seq in ((0, 3), (1, 2), (0, 4)):
        pod.publish(broker, ME, seq, flags=STRONG)
        pod.step()
    assert (seqs(pod), pod.worker.held) == ([], 3)
    pod.publish(1, ME, 1, flags=STRONG)
    pod.step()
    assert (seqs(pod), pod.worker.held) == ([1, 2, 3, 4], 0)


def test_order_2_does_not_wait_for_a_gap() -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 3, flags=STRONG)
    pod.publish(0, ME, 2)
    pod.step()
    assert seqs(pod) == [2]
    pod.publish(0, ME, 1)
    pod.step()
    assert seqs(pod) == [1, 3]


@pytest.mark.parametrize(("crc", "count"), [(7, RETRY), (8, refused(ErrorCode.PAYLOAD_MISMATCH))])
def test_a_duplicate_of_a_held_batch_is_returned(crc: int, count: int) -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 2, flags=STRONG)
    pod.publish(1, ME, 2, flags=STRONG, block_crc=crc)
    pod.step()
    assert outcomes(pod) == [(2, count)]
    assert pod.worker.held == 1


def test_a_gap_is_skipped_only_after_its_timeout() -> None:
    """INV-GAP-UNDECIDED."""
    pod = pod_with_session(after_gap_ns=100)
    pod.publish(0, ME, 4, flags=STRONG)
    pod.step(1_000)
    pod.publish(0, ME, 6, flags=STRONG)
    pod.publish(0, ME, 2)
    pod.step(1_099)
    assert seqs(pod) == [2]
    pod.step(1_100)
    entries = pod.entries()
    assert [(int(each["client_seq"]), int(each["flags"])) for each in entries] == [(1, 8), (3, 8), (4, 1)]
    assert [(int(each["record_count"]), int(each["topic_id"])) for each in entries[:2]] == [(1, 5), (1, 5)]
    # Batches that wait for the next gap have their own timeout.
    pod.step(1_199)
    assert (seqs(pod), pod.worker.skipped) == ([], 2)
    pod.step(1_200)
    assert (seqs(pod), pod.worker.skipped) == ([5, 6], 3)
    for seq in (1, 3, 5):
        pod.publish(0, ME, seq, flags=STRONG)
    pod.step(1_300)
    assert outcomes(pod) == [(seq, refused(ErrorCode.CLIENT_SEQ_SKIPPED)) for seq in (1, 3, 5)]


def test_a_run_of_lost_seqs_is_one_skip() -> None:
    pod = pod_with_session(after_gap_ns=1)
    pod.publish(0, ME, 250, flags=STRONG)
    pod.step(0)
    pod.step(1)
    first, second = pod.entries()
    assert (int(first["flags"]), int(first["client_seq"]), int(first["record_count"])) == (24, 1, 249)
    assert (int(second["client_seq"]), int(second["flags"])) == (250, STRONG)


def test_a_session_that_sends_batches_is_not_silent() -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 2, flags=STRONG)
    pod.step(0)
    pod.publish(0, ME, 2, flags=STRONG)
    pod.step(900)
    pod.step(1_899)
    assert (pod.worker.held, outcomes(pod)) == (1, [(2, RETRY)])
    pod.step(1_900)
    assert seqs(pod) == [1, 2]


def test_a_live_session_is_not_silent() -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 2, flags=STRONG)
    pod.step(0)
    pod.worker.touch(ME, 900)
    pod.worker.touch(ClientId(999), 900)
    pod.step(1_899)
    assert pod.worker.held == 1
    pod.step(1_900)
    assert seqs(pod) == [1, 2]


def test_paused_time_does_not_count() -> None:
    pod = pod_with_session(after_gap_ns=100)
    pod.publish(0, ME, 2, flags=STRONG)
    pod.step(0)
    for now in (50, 60):
        pod.worker.pause_gaps(now)
    pod.step(5_000)
    for now in (5_000, 5_010):
        pod.worker.resume_gaps(now)
    pod.step(5_049)
    assert pod.worker.held == 1
    pod.step(5_050)
    assert seqs(pod) == [1, 2]


def test_above_the_watermark_the_oldest_are_returned() -> None:
    pod = pod_with_session()
    for seq in range(2, 12):
        pod.publish(0, ME, seq, flags=STRONG)
    pod.step()
    assert outcomes(pod) == [(2, RETRY), (3, RETRY)]
    assert (pod.worker.held, pod.worker.bounced) == (8, 2)
    for seq in (1, 2, 3):
        pod.publish(0, ME, seq, flags=STRONG)
    pod.step()
    assert seqs(pod) == list(range(1, 12))


def test_a_held_slot_does_not_stop_its_ring() -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 2, flags=STRONG)
    for _ in range(50):
        pod.publish(0, SYNTHETIC, 1)
    for _ in range(3):
        pod.step()
    assert (2, RETRY) in outcomes(pod)
    assert pod.worker.held == 0


def test_held_bytes_do_not_stop_a_blog() -> None:
    """Held bytes where a broker writes next are returned, because much was claimed or because a batch waits."""
    pod = pod_with_session()
    blog_size = pod.arrays.blogs[0].size
    for seq, offset in ((2, 0), (4, 640), (3, 1280)):
        pod.publish(0, ME, seq, flags=STRONG, blog_offset=offset)
    tails = pod.arrays.tail_words[0]
    tails[records.TAIL_BLOG_CLAIMED] = blog_size * 80 // 100
    pod.step()
    assert (outcomes(pod), pod.worker.held) == ([], 3)
    tails[records.TAIL_BLOG_CLAIMED] = blog_size * 80 // 100 + 64
    pod.step()
    assert outcomes(pod) == [(2, RETRY)]
    tails[records.TAIL_BLOG_WANTED] = blog_size + 1280
    pod.step()
    assert (outcomes(pod), pod.worker.held) == ([(4, RETRY)], 1)
    # The needs of another broker do not count.
    pod.arrays.tail_words[1][records.TAIL_BLOG_WANTED] = 4 * blog_size
    pod.step()
    assert pod.worker.held == 1
    tails[records.TAIL_BLOG_WANTED] = blog_size + 1281
    pod.step()
    assert (outcomes(pod), pod.worker.held) == ([(3, RETRY)], 0)


def test_a_refusal_on_arrival_uses_its_client_seq_at_once() -> None:
    """It is not held although it is ahead, and batches after it do not wait for it."""
    pod = pod_with_session()
    for seq in (2, 4):
        pod.publish(0, ME, seq, flags=STRONG)
    refusing = records.FLAG_REFUSED | ErrorCode.TOPIC_NOT_FOUND << records.REFUSED_REASON_SHIFT
    pod.publish(0, ME, 3, flags=refusing)
    pod.step()
    (entry,) = pod.entries()
    assert (entry["client_seq"], entry["flags"]) == (3, refusing)
    pod.refusals[pod.position - 1] = ErrorCode.TOPIC_NOT_FOUND
    pod.commit(pod.position)
    pod.publish(0, ME, 1, flags=STRONG)
    pod.publish(0, ME, 3, flags=STRONG)
    pod.step()
    assert outcomes(pod) == [(1, 3), (2, 3), (4, 3), (3, refused(ErrorCode.TOPIC_NOT_FOUND))]


def test_without_a_page_the_oldest_client_releases_its_page() -> None:
    pod = Pod(settings=OrderSettings(drain_refs=32, hold_max=10, pages=1, clients_max=4, remembered_max=2))
    for client in (1, 2):
        opened(pod, client)
    pod.entries()
    for seq in (3, 2):
        pod.publish(0, 1, seq, flags=STRONG)
    pod.publish(0, 2, 5, flags=STRONG)
    pod.step()
    assert outcomes(pod) == [(3, RETRY), (2, RETRY)]
    assert pod.worker.held == 1


def test_a_newer_session_fences_held_and_later_batches() -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 3, flags=STRONG)
    pod.step()
    assert opened(pod, epoch=2) == SessionOpening(ClientSeq(1), 2)
    pod.publish(0, ME, 1, flags=STRONG)
    pod.publish(0, ME, 1, flags=STRONG, session_epoch=2)
    pod.step()
    fenced = refused(ErrorCode.FENCED)
    assert outcomes(pod) == [(3, fenced), (1, 0), (1, fenced), (1, 3)]
    with pytest.raises(ConflictError, match="is newer"):
        opened(pod, epoch=2)
    with pytest.raises(InvalidInputError, match="a gap of -1 ns"):
        opened(pod, epoch=3, after_gap_ns=-1)


def test_a_control_entry_has_the_given_fields() -> None:
    pod = Pod()
    assert pod.worker.order_control(topic_id=4, client_id=5, client_seq=6, record_count=7) == 0
    (entry,) = pod.entries()
    fields = ("flags", "broker", "topic_id", "client_id", "client_seq", "record_count", "size")
    assert [int(entry[name]) for name in fields] == [records.FLAG_CONTROL, 0xFFFF, 4, 5, 6, 7, 0]


def test_numbers_of_a_duplicate_are_those_that_were_committed() -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 1)
    pod.publish(1, ME, 1)
    pod.step()
    pod.commit(3)
    pod.publish(1, ME, 1)
    pod.step()
    _, early, late = pod.entries()
    assert int(early["blog_offset"]) == int(late["blog_offset"]) == 1
    assert [tuple(pod.shared.notes[at]) for at in (2, 3)] == [(0, 0), (1_001, 2_001)]


@pytest.mark.parametrize(("token_ahead", "reason"), [(0, ErrorCode.TOPIC_DELETED), (64, ErrorCode.CLIENT_SEQ_SKIPPED)])
def test_a_duplicate_of_a_refused_batch_is_refused(token_ahead: int, reason: ErrorCode) -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 1)
    pod.step()
    pod.refusals[1] = int(ErrorCode.TOPIC_DELETED)
    pod.commit(2)
    pod.arrays.results[0]["token"][0] += token_ahead
    pod.publish(0, ME, 1)
    pod.step()
    assert outcomes(pod)[-1] == (1, refused(reason))


def test_a_refusal_is_settled_once_its_result_is_written() -> None:
    pod = pod_with_session()
    pod.publish(0, ME, 1)
    pod.step()
    pod.refusals[1] = int(ErrorCode.TOPIC_DELETED)
    pod.commit(2)
    pod.arrays.results[0]["token"][0] = 0
    assert (pod.worker.settle(), pod.worker.unsettled) == (0, 1)
    pod.arrays.results[0]["token"][0] = 1
    assert (pod.worker.settle(), pod.worker.unsettled) == (1, 0)


def test_runs_of_one_client_around_those_of_many_are_all_its_own() -> None:
    own = OrderSettings(drain_refs=128, hold_max=10, clients_max=8, remembered_max=2)
    pod = Pod(settings=own, queue_refs=128)
    others = [ME + 1, ME + 2, ME + 3]
    for client in (ME, *others):
        assert opened(pod, client)
    for number in range(2 * PREFETCH_MAX):
        pod.publish(0, ME, 1 + number)
    for number in range(PREFETCH_MAX):
        pod.publish(1, others[number % 3], 1 + number // 3)
    # Half of the one, then the many, then the rest of the one: all in one drain.
    assert pod.collector.step(0) == 2 * PREFETCH_MAX
    pod.step()
    expected = [pod.worker.window.state(ClientId(client)).next_expected for client in (ME, *others)]
    assert expected == [1 + 2 * PREFETCH_MAX, 12, 12, 11]


def test_a_full_ring_of_entries_stalls_and_continues() -> None:
    pod = pod_with_session(OrderSettings(drain_refs=64, hold_max=10, clients_max=2, remembered_max=2))
    written = 1
    for _ in range(3):
        for _ in range(60):
            pod.publish(0, SYNTHETIC, 1)
            pod.publish(1, SYNTHETIC, 1)
        for _ in range(4):
            written += pod.step()
        pod.entries()
        pod.commit(pod.position)
        pod.complete()
        pod.worker.step(0)
        pod.arrays.completion_words[0][0] = pod.arrays.completion_words[1][0] = 60
    assert pod.position > 2 * 128
    assert opened(pod, epoch=2)


@pytest.mark.parametrize(("share", "waiting"), [(32, 1), (29, 0)])
def test_nothing_is_opened_or_ordered_without_space(share: int, waiting: int) -> None:
    pod = pod_with_session()
    for _ in range(4):
        for _ in range(share):
            pod.publish(0, SYNTHETIC, 1)
        pod.step()
    assert (pod.shared.reserved, pod.worker.waiting) == (1 + 4 * share - waiting, waiting)
    assert (opened(pod, epoch=2), pod.worker.order_control()) == (None, None)
    assert pod.worker.window.state(ClientId(ME)).session_epoch == 1
    assert (opened(pod, 77), ClientId(77) in pod.worker.window) == (None, False)


def test_a_frontier_that_accepts_no_ranges_stalls_a_worker() -> None:
    pod = Pod(small_fabric(goi_entries=128))
    for _ in range(64):
        assert pod.worker.order_control() is not None
    assert pod.worker.order_control() is None
    taken_from(pod.shared.ranges[0])
    assert pod.worker.order_control() == 64


def test_rows_are_evicted_for_others_and_restored_unchanged() -> None:
    pod = Pod(settings=SMALL)
    for client in (1, 2):
        opened(pod, client)
        pod.publish(0, client, 1)
    pod.step()
    assert opened(pod, 3) is None  # both have something unsettled
    pod.publish(0, 3, 1)
    pod.stored.rows[3] = np.array([3, 1, 1, 0, 0, 0, 0, 0], "<u8").tobytes()
    assert opened(pod, 3, epoch=2) is None
    pod.step()
    assert pod.worker.evictable(5) == []
    with pytest.raises(ConflictError, match="in flight"):
        pod.worker.take_rows([ClientId(1)])
    pod.commit(pod.shared.reserved)
    pod.step()
    assert sorted(pod.stored.rows) == [1, 3]
    pod.publish(0, 1, 1)
    pod.commit(pod.shared.reserved)
    pod.step()
    *_, last = pod.entries()
    assert (int(last["client_id"]), int(last["blog_offset"])) == (1, UNKNOWN)
    assert int(last["record_count"]) == int(AckStatus.DUPLICATE)


def test_a_client_without_a_row_is_fenced() -> None:
    pod = Pod(settings=SMALL)
    for client in (4, 4, 5, 4, 0):
        pod.publish(0, client, 1)
    pod.step()
    assert [count for _, count in outcomes(pod)] == [refused(ErrorCode.FENCED)] * 5
    assert pod.stored.log == [("load", client) for client in (4, 5, 4, 0)]


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least 1"):
        OrderSettings(hold_max=1)
    with pytest.raises(InvalidInputError, match="the low one must not be above"):
        OrderSettings(goi_low_percent=95)
    with pytest.raises(InvalidInputError, match="the fabric has 128 entries"):
        OrderWorker(small_fabric(), SequencerShared.make(256), 0, term=1, rows=StoredRows())


def test_workers_on_threads_write_disjoint_entries_without_lapping() -> None:
    """INV-GOI-WRAP."""
    arrays = small_fabric(brokers=2, goi_entries=128, pbr_entries=1024)
    shared = SequencerShared.make(128, 1, 2, queue_refs=1024)
    pod = Pod(arrays)
    clients = [client for client in range(1, 200) if worker_of(client, 2) == 0][:2]
    clients += [client for client in range(1, 200) if worker_of(client, 2) == 1][:2]
    own = OrderSettings(drain_refs=16, hold_max=10, pages=2, clients_max=4, remembered_max=4)
    workers = [OrderWorker(arrays, shared, at, term=1, rows=StoredRows(), settings=own) for at in range(2)]
    for client in clients:
        row = np.array([client, 1, 1, 0, 0, 0, 0, 0], "<u8")
        workers[worker_of(client, 2)].import_rows(row.tobytes())
    for seq in range(1, 401):
        for at, client in enumerate(clients):
            pod.publish(at % 2, client, seq, flags=STRONG)
    Collector(arrays, shared, 0, [0, 1]).step(0)
    done = False

    def work(worker: OrderWorker) -> None:
        while not done:
            worker.step(0)

    threads = [Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    found: list[tuple[int, int]] = []
    ends: dict[int, int] = {}
    try:
        while len(found) < 1_600:
            for ring in shared.ranges:
                ends.update(dict(taken_from(ring)))
            committed = int(arrays.control["committed"][0])
            while committed in ends:
                end = ends.pop(committed)
                for position in range(committed, end):
                    entry = arrays.goi[position % 128]
                    assert int(entry["token"]) == position + 1
                    found.append((int(entry["client_id"]), int(entry["client_seq"])))
                committed = end
            arrays.control["committed"] = committed
            shared.counters[FLOOR] = committed
    finally:
        done = True
        for thread in threads:
            thread.join()
    for client in clients:
        assert [seq for each, seq in found if each == client] == list(range(1, 401))
    assert all(ring.counters[PRODUCED] == ring.counters[CONSUMED] for ring in shared.queues[0])


def test_a_session_that_is_not_committed_stays_in_memory() -> None:
    """It is not stored yet: its row would return with the earlier session, and fence no client."""
    pod = pod_with_session()
    assert pod.worker.evictable(5) == []
    pod.commit(1)
    assert pod.worker.evictable(5) == [ME]


def test_a_row_without_space_is_loaded_again() -> None:
    pod = Pod(settings=SMALL)
    pod.worker = OrderWorker(pod.arrays, pod.shared, 0, term=1, rows=(stored := StoredRows()), settings=SMALL)
    for client in (5, 6):
        opened(pod, client)
    row = pod.worker.window.export_rows([ClientId(5)])
    stored.rows[ClientId(7)] = row.replace(b"\x05", b"\x07", 1)
    pod.publish(0, 7, 1)
    pod.step()
    assert 7 not in pod.worker.window
    pod.commit(2)
    pod.step()
    assert seqs(pod)[-1] == 1
    assert 7 in pod.worker.window

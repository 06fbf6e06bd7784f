"""Clients of protocol version 1 on plain sockets that publish or read until they are stopped.

A publisher that loses its connection sends its unacked records again on another one, with another mark: version 1
stores duplicates.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from contextlib import suppress

from chaos_clients import TIMEOUT_S, ReadingWorker, Worker
from chaos_history import Mark, ReadItem, Written, mark_of, value_of
from v1_clients import ACK, BATCH, CONTROL, HEADER, frame, record

#: Frames in flight: far fewer than the server allows, enough to lose many at once.
PIPELINE = 40
FETCH, FETCH_REPLY, LIST, ERROR = 0x10, 0x11, 0x03, 0xFF


class LostError(OSError):
    """The connection is lost, or the received frame is no answer."""


class Wire:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> tuple[int, int, bytes]:
        header = self._exactly(HEADER.size)
        _, version, flags, _, _, batch_id, _, _, length, _, _ = HEADER.unpack(header)
        assert version == 1
        return flags, batch_id, self._exactly(length)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            data = self._socket.recv(size - len(found))
            if not data:
                raise LostError("the server has closed")
            found += data
        return bytes(found)


class V1Worker(Worker):
    """Has a connection, and opens another one when it is lost."""

    wire: Wire | None = None

    def connected(self) -> Wire:
        deadline = time.monotonic() + TIMEOUT_S
        while self.wire is None:
            try:
                self.wire = Wire(int(self.url.rpartition(":")[2]))
            except OSError:
                assert time.monotonic() < deadline, "no server"
                time.sleep(0.05)
        return self.wire

    def lose(self) -> None:
        if self.wire is not None:
            self.wire.close()
            self.wire = None


class V1Publisher(V1Worker):
    """Sends many records before it waits for acks."""

    def __init__(self, name: str, url: str, seed: object, topic: str, topic_id: int) -> None:
        super().__init__(name, url, seed)
        self.written = Written(name, topic, is_once=False)
        self._topic_id = topic_id
        self._number = 0
        #: Numbers without an ack, and the padding of their values.
        self._unacked: deque[tuple[int, int]] = deque()

    def work(self) -> None:
        attempt = 0
        while not self.is_ending.is_set() or self._unacked:
            attempt += 1
            with suppress(OSError):
                self._publish_on(self.connected(), attempt)
            self.lose()

    def _publish_on(self, wire: Wire, attempt: int) -> None:
        """Send unacked records first, then new ones, until the connection is lost or the worker is stopped."""
        again, self._unacked = self._unacked, deque()
        waiting: deque[Mark] = deque()
        batch_id = 0
        try:
            while again or not self.is_ending.is_set():
                while len(waiting) < PIPELINE and (again or not self.is_ending.is_set()):
                    number, padding = again.popleft() if again else self._new()
                    self._unacked.append((number, padding))
                    value = value_of(self.name, attempt, number, padding)
                    waiting.append(mark_of(value))
                    self.written.offered.append(waiting[-1])
                    batch_id += 1
                    wire.send(frame(BATCH, record(value), batch_id=batch_id, topic=self._topic_id))
                while waiting:
                    flags, acked, payload = wire.receive()
                    if flags != ACK:
                        raise LostError(f"refused: {payload!r}")
                    assert acked == batch_id - len(waiting) + 1, "acks come in the order of their batches"
                    self.written.acked[waiting.popleft()] = 0
                    self._unacked.popleft()
                time.sleep(self.random.choice((0.0, 0.01, 0.03)))
        finally:
            self._unacked += again

    def _new(self) -> tuple[int, int]:
        self._number += 1
        return self._number, self.random.choice((0, 10, 300, 20_000))


class V1Reader(V1Worker, ReadingWorker):
    """Fetches bytes from an offset on, repeatedly."""

    def __init__(self, name: str, url: str, seed: object, topic: str, topic_id: int) -> None:
        super().__init__(name, url, seed, topic)
        self.read.has_seqs = False
        self._topic_id = topic_id
        self._offset = 0
        #: The number of records to read; set before `is_ending`.
        self.count = 0

    def work(self) -> None:
        try:
            while not (self.is_ending.is_set() and len(self.read.items) >= self.count):
                try:
                    self._fetch(self.connected())
                except OSError:
                    self.lose()
        finally:
            self.lose()

    def _fetch(self, wire: Wire) -> None:
        request = struct.pack("<IQI", self._topic_id, self._offset, 200_000)
        wire.send(frame(CONTROL, request, batch_id=FETCH))
        flags, command, payload = wire.receive()
        if (flags, command) != (CONTROL, FETCH_REPLY):
            raise LostError(f"refused: {payload!r}")
        following, length, _ = struct.unpack_from("<QII", payload)
        assert len(payload) == 16 + length
        at = 16
        while at < len(payload):
            size = struct.unpack_from("<I", payload, at + 1)[0]
            self.read.items.append(ReadItem(0, mark_of(payload[at + 5 : at + 5 + size])))
            at += 5 + size
        assert at == len(payload), "a reply ends with a whole record"
        assert following - self._offset >= length, f"{length} bytes from {self._offset} on end behind {following}"
        self._offset = following
        if not length:
            time.sleep(0.02)

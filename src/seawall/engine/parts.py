"""The collaborators of one store, as `opening` puts them together: whoever is part of a store takes what it needs here.

Each owns what it changes. A store has one of each, and one thread of control at a time uses them. This module must not
know who gives positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from seawall.core.types import Term
from seawall.engine.control_log import ControlLog
from seawall.engine.log_writer import LogWriter
from seawall.engine.pending_rows import PendingRows
from seawall.engine.removal import Removal
from seawall.engine.room_making import RoomMaker
from seawall.engine.rooms import Reservations
from seawall.engine.sessions import Sessions
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.short_way import ShortWay
from seawall.engine.topic_logs import TopicLogs
from seawall.engine.upkeep import Upkeep
from seawall.engine.write_guard import WriteGuard
from seawall.storage.control_documents import Loss
from seawall.storage.directory import DataDirectory
from seawall.storage.epochs import WalAddress
from seawall.storage.snapshots import SnapshotStore
from seawall.storage.wal import WalWriter
from seawall.topics.catalog import TopicCatalog


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What an open data directory consists of."""

    machine: Machine
    settings: StoreSettings
    directory: DataDirectory
    snapshots: SnapshotStore
    wal: WalWriter
    writer: LogWriter
    #: All topics, but for what `pending` has not applied yet.
    catalog: TopicCatalog
    logs: TopicLogs
    sessions: Sessions
    term: Term
    guard: WriteGuard
    pending: PendingRows
    reservations: Reservations
    controls: ControlLog
    removal: Removal
    upkeep: Upkeep
    maker: RoomMaker

    @classmethod
    def of(
        cls,
        machine: Machine,
        settings: StoreSettings,
        directory: DataDirectory,
        snapshots: SnapshotStore,
        wal: WalWriter,
        writer: LogWriter,
        catalog: TopicCatalog,
        logs: TopicLogs,
        sessions: Sessions,
        term: Term,
        *,
        lost: Sequence[Loss],
        checkpoint_at: WalAddress,
    ) -> Self:
        """The parts that follow from what an opening has found."""
        guard = WriteGuard(directory.path)
        pending, reservations = PendingRows(ShortWay(wal, writer.frontier, term), catalog, logs), Reservations()
        shared = (guard, directory, writer, catalog, machine.clock, term)
        controls = ControlLog(*shared, pending=pending, reservations=reservations, lost=lost)
        removal = Removal(catalog, logs, controls, settings.ephemeral_size)
        upkeep = Upkeep(checkpoint_at, settings.checkpoint_size)
        logs.open_files.on_sync_failed = guard.refuse
        logs.on_recovered = removal.look_at
        return cls(
            machine,
            settings,
            directory,
            snapshots,
            wal,
            writer,
            catalog,
            logs,
            sessions,
            term,
            guard,
            pending,
            reservations,
            controls,
            removal,
            upkeep,
            RoomMaker(writer, removal, logs.of, upkeep),
        )

    def current_catalog(self) -> TopicCatalog:
        """All topics as they are now."""
        self.pending.apply()
        return self.catalog

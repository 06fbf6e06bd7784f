"""The collaborators of one store, as `opening` puts them together: whoever is part of a store takes what it needs here.

Each owns what it changes. A store has one of each, and one thread of control at a time uses them. This module must not
know who gives positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from seawall.core.types import Term
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.commit.pending_rows import PendingRows
from seawall.engine.commit.reservations import Reservations
from seawall.engine.commit.reserver import Reserver
from seawall.engine.maintenance.checkpoint_schedule import CheckpointSchedule
from seawall.engine.maintenance.retention import LogCleaner
from seawall.engine.store.control_log import ControlLog
from seawall.engine.store.sessions import Sessions
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.topic_logs import TopicLogs
from seawall.engine.store.write_guard import WriteGuard
from seawall.storage.control.documents import Loss
from seawall.storage.directory import DataDirectory
from seawall.storage.snapshots import SnapshotStore
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.writer import WalWriter
from seawall.topics.catalog import TopicCatalog


class StoreParts:
    """What an open data directory consists of."""

    def __init__(
        self,
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
    ) -> None:
        """What an opening has found, and the parts that follow from it."""
        self.machine = machine
        self.settings = settings
        self.directory = directory
        self.snapshots = snapshots
        self.wal = wal
        self.writer = writer
        #: All topics, but for what `pending` has not applied yet.
        self.catalog = catalog
        self.logs = logs
        self.sessions = sessions
        self.term = term
        self.guard = guard = WriteGuard(directory.path)
        self.pending = pending = PendingRows(catalog, logs)
        self.reservations = Reservations()
        shared = (guard, directory, writer, catalog, machine.clock, term, pending, self.reservations)
        self.controls = ControlLog(*shared, lost=lost)
        self.cleaner = LogCleaner(catalog, logs, self.controls, settings.ephemeral_size)
        self.checkpoint_schedule = CheckpointSchedule(checkpoint_at, settings.checkpoint_size)
        self.maker = Reserver(writer, self.cleaner, logs.of, self.checkpoint_schedule)
        logs.open_files.on_sync_failed = guard.refuse
        logs.on_recovered = self.cleaner.look_at

    def current_catalog(self) -> TopicCatalog:
        """All topics as they are now."""
        self.pending.apply()
        return self.catalog

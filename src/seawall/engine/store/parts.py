"""The collaborators of one store, put together by `opening`: each component of a store takes the ones it needs.

Each collaborator owns the state that it changes. A store has one of each, used by one thread at a time. This module
must not know which orderer assigns positions.
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
    """The components of an open data directory."""

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
        """Take what the opening found, and create the components that depend on it."""
        self.machine = machine
        self.settings = settings
        self.directory = directory
        self.snapshots = snapshots
        self.wal = wal
        self.writer = writer
        #: All topics, without the rows that `pending` still has to apply.
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
        self.reserver = Reserver(writer, self.cleaner, logs.of, self.checkpoint_schedule)
        logs.open_files.on_sync_failed = guard.refuse
        logs.on_recovered = self.cleaner.recheck

    def current_catalog(self) -> TopicCatalog:
        """All topics, with every pending row applied."""
        self.pending.apply()
        return self.catalog

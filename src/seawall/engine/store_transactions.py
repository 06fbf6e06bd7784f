"""The part of a store that is about transactions: where they are staged, and how they are committed or aborted.

What happens in there is `transactions`; who makes the order does these things at a position of it (`ordered_store`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext

from seawall.core.transactions import CommittedTransaction, StagedRange, WantedTransaction, berth_name
from seawall.engine.settings import StoreSettings
from seawall.engine.staging import BERTHS, find_staging, staging_config
from seawall.engine.store_questions import StoreQuestions
from seawall.engine.transactions import Transactions, Unlocked
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.fields import JsonObject


class StoreTransactions(StoreQuestions):
    """Transactions of a store."""

    _settings: StoreSettings
    _transactions: Transactions
    #: How often a berth was given out.
    _berths_given = 0

    @abstractmethod
    def _create(self, name: str, config: TopicConfig, *, is_reserved: bool) -> TopicState: ...

    @abstractmethod
    def _configure(self, topic: TopicState, patch: JsonObject) -> TopicState: ...

    def staging(self, *, is_apart: bool = False) -> TopicState:
        """The topic that transactions are staged in, or for who stages much a berth, whose turn it is.

        Made if it is not there; durable when this returns.
        """
        berth = 0
        if is_apart:
            berth = 1 + self._berths_given % BERTHS
            self._berths_given += 1
        topic = self._staging(berth)
        if berth:
            self._transactions.begin_apart(topic)
        return topic

    def _staging(self, berth: int) -> TopicState:
        config = staging_config(self._settings.staging_ttl_ms)
        found = find_staging(self.catalog, berth)
        if found is None:
            return self._create(berth_name(berth), config, is_reserved=True)
        return self._configure(found, config.to_json())

    def commit_transaction(self, wanted: WantedTransaction, unlocked: Unlocked = nullcontext) -> CommittedTransaction:
        """Publish what was staged, all of it or nothing, at one position, once for its key; durable when this returns.

        `unlocked` lets readers of the store go on while batches are copied.
        """
        known = self._transactions.repeated(wanted.owner, wanted.epoch)
        if known is not None:
            return known
        self._transactions.check(wanted)
        return self._transactions.commit(wanted, unlocked)

    def abort_staged(self, ranges: Sequence[StagedRange]) -> int:
        """Delete what was staged and will not be published; how many records went. Durable when this returns."""
        return self._transactions.abort(ranges)

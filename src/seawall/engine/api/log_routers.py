"""The router methods of the embedded log: create, list, describe and delete routers.

This module must not know how a router copies.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

from seawall.api.routers import RouterLog
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.engine.routing.forwarder import Forwarder
from seawall.engine.store.store import Store


class EmbeddedRouters(RouterLog):
    """The router methods of an embedded log."""

    forwarder: Forwarder
    _store: Store

    @abstractmethod
    def changing(self) -> AbstractContextManager[Store]:
        """Lock the store exclusively, for a change other than an append."""

    @abstractmethod
    def inspecting(self) -> AbstractContextManager[Store]:
        """Lock the store's memory, for a read-only query."""

    def _put_router(self, name: str, source: str, dest: str, settings: RouterSettings, create_dest: bool) -> RouterInfo:
        with self.changing() as store:
            store.routing.put(name, source, dest, settings, create_dest=create_dest)
            return store.routing.info(name)

    def routers(self) -> list[RouterInfo]:
        """All routers, sorted by name, as they are when everything published before is copied."""
        self.catch_up(None)
        with self.inspecting() as store:
            return store.routing.infos()

    def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it is when everything published before is copied."""
        with self.inspecting() as store:
            dest = store.routing.info(name).dest
        self.catch_up(dest)
        with self.inspecting() as store:
            return store.routing.info(name)

    def delete_router(self, name: str) -> None:
        """Delete a router. Its copies stay. Durable when this returns."""
        with self.changing() as store:
            store.routing.delete(name)

    def catch_up(self, topic: str | None) -> None:
        """Run the routers whose copies may reach a topic, or all of them: before a read of it."""
        if self._store.routing.is_used:
            with self.inspecting() as store:
                topic_id = None if topic is None else store.catalog.named(topic).topic_id
            self.forwarder.catch_up(topic_id)

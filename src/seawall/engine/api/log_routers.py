"""The router methods of the embedded log: create, list, describe and delete routers.

This module must not know how a router copies.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager

from seawall.core.routers import Guarantee, RouterInfo, RouterSettings
from seawall.engine.routing.forwarder import Forwarder
from seawall.engine.store.store import Store


class EmbeddedRouters:
    """The router methods of an embedded log."""

    forwarder: Forwarder
    _store: Store

    @abstractmethod
    def changing(self) -> AbstractContextManager[Store]:
        """Lock the store exclusively, for a change other than an append."""

    @abstractmethod
    def inspecting(self) -> AbstractContextManager[Store]:
        """Lock the store's memory, for a read-only query."""

    def create_router(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        tag: str | None = None,
        tag_prefix: str | None = None,
        node: str | None = None,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: str = Guarantee.AT_LEAST_ONCE,
    ) -> RouterInfo:
        """Create a router: it copies to topic `dest` what is published to topic `source` from now on.

        With `tag`, `tag_prefix` or `node` it copies only the records that match all of them. Without `preserve_node` or
        `preserve_tag` copies lack the node or the tag. Topics that do not exist are created; `dest` only with
        `create_dest`. A topic gets copies from one source at most, and routers form no loop unless `allow_cycle`.

        If there is a router of this name with the same topics, its settings change; it continues where it is. Durable
        when this returns.
        """
        settings = RouterSettings.of(
            {
                "tag": tag,
                "tag_prefix": tag_prefix,
                "node": node,
                "preserve_node": preserve_node,
                "preserve_tag": preserve_tag,
                "allow_cycle": allow_cycle,
                "guarantee": guarantee,
            }
        )
        return self.put_router(name, source, dest, settings, create_dest=create_dest)

    def put_router(
        self, name: str, source: str, dest: str, settings: RouterSettings, *, create_dest: bool
    ) -> RouterInfo:
        """Create a router, or change its settings."""
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

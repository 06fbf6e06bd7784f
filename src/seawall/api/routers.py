"""The router methods that every kind of log has, for threads and for asyncio.

A router copies what is published to one topic to another one. This module must not know where a log is, nor how a
router copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from seawall.core.routers import Guarantee, RouterInfo, RouterSettings

#: The result of creating a router, or what to await for it.
Created = TypeVar("Created")


class CreatingRouters(ABC, Generic[Created]):
    """The method that creates routers, for threads and for asyncio."""

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
    ) -> Created:
        """Create a router: it copies to topic `dest` what is published to topic `source` from now on.

        With `tag`, `tag_prefix` or `node` it copies only the records that match all of them. Without `preserve_node` or
        `preserve_tag`, copies lack the node or the tag. Topics that do not exist are created; `dest` only with
        `create_dest`. A topic gets copies from one source at most, and routers form no loop unless `allow_cycle`.

        If there is a router of this name with the same topics, its settings change, and it continues where it is.
        Durable when this returns.
        """
        settings = _settings(tag, tag_prefix, node, preserve_node, preserve_tag, allow_cycle, guarantee)
        return self._put_router(name, source, dest, settings, create_dest)

    @abstractmethod
    def _put_router(
        self, name: str, source: str, dest: str, settings: RouterSettings, create_dest: bool
    ) -> Created: ...


class RouterLog(CreatingRouters[RouterInfo]):
    """The router methods of a log."""

    @abstractmethod
    def routers(self) -> list[RouterInfo]:
        """All routers, sorted by name, as they are when everything published before is copied."""

    @abstractmethod
    def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it is when everything published before is copied."""

    @abstractmethod
    def delete_router(self, name: str) -> None:
        """Delete a router. Its copies stay. Durable when this returns."""


class AsyncRouterLog(CreatingRouters[Coroutine[Any, Any, RouterInfo]]):
    """The router methods of a log for asyncio."""

    @abstractmethod
    async def routers(self) -> list[RouterInfo]:
        """All routers, sorted by name, as they are when everything published before is copied."""

    @abstractmethod
    async def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it is when everything published before is copied."""

    @abstractmethod
    async def delete_router(self, name: str) -> None:
        """Delete a router. Its copies stay. Durable when this returns."""


def _settings(
    tag: str | None,
    tag_prefix: str | None,
    node: str | None,
    preserve_node: bool,
    preserve_tag: bool,
    allow_cycle: bool,
    guarantee: str,
) -> RouterSettings:
    return RouterSettings.of(
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

"""The router methods of the embedded log for asyncio: all of them run on a thread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from seawall.core.routers import Guarantee, RouterInfo
from seawall.engine.api.log_routers import EmbeddedRouters

P = ParamSpec("P")
R = TypeVar("R")


class AsyncRouters:
    """The router methods of an embedded log on an event loop."""

    @abstractmethod
    def _opened(self) -> EmbeddedRouters: ...

    @abstractmethod
    def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Awaitable[R]: ...

    async def create_router(
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
        return await self._on_thread(
            self._opened().create_router,
            name,
            source,
            dest,
            tag=tag,
            tag_prefix=tag_prefix,
            node=node,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            allow_cycle=allow_cycle,
            guarantee=guarantee,
        )

    async def routers(self) -> list[RouterInfo]:
        """All routers, sorted by name, as they are when everything published before is copied."""
        return await self._on_thread(self._opened().routers)

    async def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it is when everything published before is copied."""
        return await self._on_thread(self._opened().describe_router, name)

    async def delete_router(self, name: str) -> None:
        """Delete a router. Its copies stay. Durable when this returns."""
        await self._on_thread(self._opened().delete_router, name)

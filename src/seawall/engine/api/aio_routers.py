"""The router methods of the embedded log for asyncio: all of them run on a thread."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from seawall.api.routers import AsyncRouterLog
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.engine.api.log_routers import EmbeddedRouters

P = ParamSpec("P")
R = TypeVar("R")


class AsyncRouters(AsyncRouterLog):
    """The router methods of an embedded log on an event loop."""

    @abstractmethod
    def _opened(self) -> EmbeddedRouters: ...

    @abstractmethod
    def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Awaitable[R]: ...

    async def routers(self) -> list[RouterInfo]:
        """All routers, sorted by name, as they are when everything published before is copied."""
        return await self._on_thread(self._opened().routers)

    async def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it is when everything published before is copied."""
        return await self._on_thread(self._opened().describe_router, name)

    async def delete_router(self, name: str) -> None:
        """Delete a router. Its copies stay. Durable when this returns."""
        await self._on_thread(self._opened().delete_router, name)

    async def _put_router(
        self, name: str, source: str, dest: str, settings: RouterSettings, create_dest: bool
    ) -> RouterInfo:
        return await self._on_thread(self._opened()._put_router, name, source, dest, settings, create_dest)

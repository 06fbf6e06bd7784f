"""The router methods of a log behind a server, for threads and for asyncio."""

from __future__ import annotations

from abc import abstractmethod

from seawall.api.routers import AsyncRouterLog, RouterLog
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.connection.requests import Requests
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.limits import ROUTERS_LISTED_MAX
from seawall.wire.lwp2.routers import (
    RouterDelete,
    RouterDescribe,
    RouterList,
    RouterPut,
    RouterRequest,
    parse_routers_reply,
)


class RemoteRouters(RouterLog):
    """The router methods of a remote log."""

    _requests: Requests

    def routers(self) -> list[RouterInfo]:
        """All routers, sorted by name, as they are when everything published before is copied."""
        found: list[RouterInfo] = []
        while page := self._ask(RouterList(found[-1].name if found else "", ROUTERS_LISTED_MAX)):
            found += page
        return found

    def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it is when everything published before is copied."""
        return self._ask(RouterDescribe(name))[0]

    def delete_router(self, name: str) -> None:
        """Delete a router. Its copies stay. Durable when this returns."""
        self._ask(RouterDelete(name), is_repeatable=False)

    def _put_router(self, name: str, source: str, dest: str, settings: RouterSettings, create_dest: bool) -> RouterInfo:
        return self._ask(RouterPut(name, source, dest, settings, create_dest))[0]

    def _ask(self, request: RouterRequest, *, is_repeatable: bool = True) -> tuple[RouterInfo, ...]:
        return parse_routers_reply(self._requests.request(request, is_repeatable=is_repeatable).payload).routers


class AsyncRemoteRouters(AsyncRouterLog):
    """The router methods of a remote log for asyncio."""

    @property
    @abstractmethod
    def _requests(self) -> AsyncRequests: ...

    async def routers(self) -> list[RouterInfo]:
        """All routers, sorted by name, as they are when everything published before is copied."""
        found: list[RouterInfo] = []
        while page := await self._ask(RouterList(found[-1].name if found else "", ROUTERS_LISTED_MAX)):
            found += page
        return found

    async def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it is when everything published before is copied."""
        return (await self._ask(RouterDescribe(name)))[0]

    async def delete_router(self, name: str) -> None:
        """Delete a router. Its copies stay. Durable when this returns."""
        await self._ask(RouterDelete(name), is_repeatable=False)

    async def _put_router(
        self, name: str, source: str, dest: str, settings: RouterSettings, create_dest: bool
    ) -> RouterInfo:
        return (await self._ask(RouterPut(name, source, dest, settings, create_dest)))[0]

    async def _ask(self, request: RouterRequest, *, is_repeatable: bool = True) -> tuple[RouterInfo, ...]:
        reply = await self._requests.request(request, is_repeatable=is_repeatable)
        return parse_routers_reply(reply.payload).routers

"""Router commands: 71 to 74 of version 2.

A description is made after the router has copied everything that was stored when the request came. Refusals raise an
error of the tree in `errors.py`. This module must not know connections.
"""

from __future__ import annotations

from functools import partial

from seawall import limits
from seawall.core.types import TopicId
from seawall.engine.read.v1_offsets import DEFAULT_TOPIC_NAME
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.store import Store
from seawall.server.lwp2.refusals import refuse
from seawall.wire.format.codes import ErrorCode
from seawall.wire.lwp2.routers import (
    RouterDelete,
    RouterDescribe,
    RouterList,
    RouterPut,
    RouterRequest,
    RoutersReply,
)


class RouterCommands:
    """The router commands of a log."""

    def __init__(self, log: ServedLog) -> None:
        self._log = log

    async def execute(self, request: RouterRequest) -> RoutersReply:
        """Execute one command and return its reply."""
        match request:
            case RouterPut():
                if DEFAULT_TOPIC_NAME in (request.source, request.dest):
                    text = f"the name {DEFAULT_TOPIC_NAME!r} is taken by the server: choose another topic"
                    raise refuse(ErrorCode.TOPIC_NAME, text)
                names = (request.name, request.source, request.dest)
                settings = request.settings
                made = await self._log.create_router(
                    *names,
                    tag=settings.tag,
                    tag_prefix=settings.tag_prefix,
                    node=settings.node,
                    preserve_node=settings.preserve_node,
                    preserve_tag=settings.preserve_tag,
                    create_dest=request.create_dest,
                    allow_cycle=settings.allow_cycle,
                    guarantee=settings.guarantee,
                )
                return RoutersReply((made,))
            case RouterDescribe():
                return RoutersReply((await self._log.describe_router(request.name),))
            case RouterDelete():
                before = await self._log.ask(lambda store: store.routing.info(request.name))
                await self._log.delete_router(request.name)
                return RoutersReply((before,))
            case RouterList():
                return await self._listed(request)

    async def _listed(self, request: RouterList) -> RoutersReply:
        count = min(request.count, limits.ROUTERS_LISTED_MAX)
        for topic_id in await self._log.ask(partial(_dests, after=request.after, count=count)):
            await self._log.catch_up(topic_id)
        return RoutersReply(tuple(await self._log.ask(lambda store: store.routing.infos(request.after, count))))


def _dests(store: Store, after: str, count: int) -> list[TopicId]:
    """The destinations of some routers."""
    return list(dict.fromkeys(store.catalog.named(each.dest).topic_id for each in store.routing.infos(after, count)))

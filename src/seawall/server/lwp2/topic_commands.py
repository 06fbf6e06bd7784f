"""Topic commands: 01 to 07, which both protocol versions have with the same payloads and replies, and 60 to 64.

Topic ids are those of the catalog: rising from 1, never reused. Retention is the age and size of a topic; 0 is no limit
in both.

Topic 0 of version 1 is an ordinary topic under a name that no command shows; it is created at its first use. Its real
id means nothing to peers, and they cannot request its name.

Commands that change topics run one at a time, so that what they have looked up stays true. Commands that create topics
look nothing up and run concurrently.

Refusals raise `ProtocolError` with a code of the protocol. This module must not know connections or versions.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from seawall import limits
from seawall.core.identifiers import check_topic_name, is_reserved_name
from seawall.core.types import Term, TopicId
from seawall.engine.read.v1_offsets import DEFAULT_TOPIC_NAME
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.store import Store
from seawall.errors import ConflictError, InvalidInputError, NotFoundError, ProtocolError
from seawall.io.process.clocks import OsClock
from seawall.server.lwp2.refusals import refusal, refuse
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.format.codes import U64_MAX, ErrorCode
from seawall.wire.format.fields import JsonObject, JsonValue
from seawall.wire.lwp1.replies import (
    ClusterStatusReply,
    EncodedTopicList,
    Retention,
    RetentionReply,
    TopicDeletedReply,
    TopicReply,
)
from seawall.wire.lwp1.requests import (
    Authenticate,
    CreateTopic,
    CreateTopicWithRetention,
    DeleteTopic,
    GetClusterStatus,
    GetTopic,
    ListTopics,
    SetRetention,
    SharedRequest,
)
from seawall.wire.lwp2.frames import SharedReply
from seawall.wire.lwp2.topics import (
    RecordsDelete,
    RecordsDeleted,
    TopicConfigure,
    TopicCreate,
    TopicDescribe,
    TopicFind,
    TopicRequest,
)

#: The topic of version 1 that always exists.
DEFAULT_TOPIC_ID: Final = TopicId(0)

_MS_PER_S: Final = 1_000

_ALONE: Final = ClusterStatusReply(
    node_id=0,
    is_leader=True,
    leader_id=0,
    current_term=Term(0),
    node_count=1,
    healthy_nodes=1,
    quorum_available=True,
    mode="standalone",
)


class TopicCommands:
    """The topic commands of a log."""

    def __init__(self, log: ServedLog) -> None:
        self._log = log
        self._change_lock = asyncio.Lock()

    # --- topics by their ids -----------------------------------------------------------------------------------------

    def find(self, topic_id: TopicId) -> TopicState | None:
        """The topic with an id; None if it does not exist, also for 0 before its first use."""
        if topic_id == DEFAULT_TOPIC_ID:
            try:
                return self._log.topic_named(DEFAULT_TOPIC_NAME)
            except NotFoundError:
                return None
        topic = self._log.topic(topic_id)
        return None if topic is None or _is_hidden(topic) else topic

    def existing(self, topic_id: TopicId) -> TopicState:
        """The topic with an id other than 0; raises if it does not exist."""
        topic = None if topic_id == DEFAULT_TOPIC_ID else self.find(topic_id)
        if topic is None:
            raise unknown_topic(topic_id)
        return topic

    async def default_topic(self) -> TopicState:
        """Topic 0, created at its first use."""
        async with self._change_lock:
            topic = self.find(DEFAULT_TOPIC_ID)
            if topic is None:
                with suppress(ConflictError):
                    # Another event loop may have created it meanwhile.
                    await self._log.create_topic(DEFAULT_TOPIC_NAME)
                topic = self._log.topic_named(DEFAULT_TOPIC_NAME)
        return topic

    # --- commands ----------------------------------------------------------------------------------------------------

    async def execute(self, request: SharedRequest) -> SharedReply:
        """Execute one command and return its reply; the connection handles Authenticate (`access`)."""
        match request:
            case GetTopic():
                topic = self.existing(request.topic_id)
                await self._log.catch_up(topic.topic_id)
                records, size = await self._log.ask(partial(_content, topic_id=topic.topic_id))
                return replace(topic_reply(topic), record_count=records, byte_count=size)
            case ListTopics():
                return await self._listed()
            case GetClusterStatus():
                is_ok = self._log.failure is None
                return replace(_ALONE, healthy_nodes=int(is_ok), quorum_available=is_ok)
            case Authenticate():
                raise refuse(ErrorCode.INVALID_PAYLOAD, "tokens are shown to a connection")
            # Creations look nothing up: they need no lock, and many of them share a commit.
            case CreateTopic():
                return topic_reply(await self._create(request.name, {}))
            case CreateTopicWithRetention():
                wanted = Retention(request.max_age_secs, request.max_bytes)
                return topic_reply(await self._create(request.name, _settings(wanted)), wanted)
        async with self._change_lock:
            match request:
                case SetRetention():
                    wanted = Retention(request.max_age_secs, request.max_bytes)
                    topic = self.existing(request.topic_id)
                    await self._log.configure_topic(topic.name, **_settings(wanted))
                    return RetentionReply(topic.topic_id, wanted)
                case DeleteTopic():
                    topic = self.existing(request.topic_id)
                    await self._log.delete_topic(topic.name)
                    return TopicDeletedReply(topic.topic_id)

    async def execute_own(self, request: TopicRequest) -> TopicReply | RecordsDeleted:
        """Execute one command that only version 2 has, and return its reply."""
        match request:
            case TopicDescribe():
                return await self._described(self.existing(request.topic_id), is_use=True)
            case TopicFind():
                topic = self._named(request.name)
                return replace(topic_reply(topic), settings=topic.config.to_json())
            case TopicCreate():
                return await self._described(await self._create(request.name, request.settings))
        async with self._change_lock:
            match request:
                case TopicConfigure():
                    topic = self.existing(request.topic_id)
                    await self._log.configure_topic(topic.name, **request.settings)
                    return await self._described(topic)
                case RecordsDelete():
                    name = self.existing(request.topic_id).name
                    by_tag = {"tag": request.tag, "tag_prefix": request.tag_prefix}
                    return RecordsDeleted(await self._log.delete(name, before_seq=request.before_seq, **by_tag))

    async def _create(self, name: str, settings: JsonObject) -> TopicState:
        if name == DEFAULT_TOPIC_NAME:
            raise refuse(ErrorCode.TOPIC_NAME, f"the name {name!r} is taken by the server: choose another one")
        try:
            check_topic_name(name)
        except InvalidInputError as error:
            raise refuse(ErrorCode.TOPIC_NAME, str(error)) from error
        try:
            await self._log.create_topic(name, **settings)
        except ConflictError as error:
            raise refuse(ErrorCode.TOPIC_EXISTS, str(error)) from error
        return self._log.topic_named(name)

    async def _listed(self) -> EncodedTopicList:
        """All visible topics at one moment; other tasks run in between."""
        topics = await self._log.ask(_visible)
        encoded: list[bytes] = []
        for first in range(0, len(topics), limits.TOPICS_LISTED_AT_ONCE):
            encoded += [topic_reply(topic).encode() for topic in topics[first : first + limits.TOPICS_LISTED_AT_ONCE]]
            await asyncio.sleep(0)
        return EncodedTopicList(tuple(encoded))

    async def _described(self, topic: TopicState, *, is_use: bool = False) -> TopicReply:
        """A topic with all its details."""
        await self._log.catch_up(topic.topic_id)
        return await self._log.ask(partial(_details, topic_id=topic.topic_id, is_use=is_use))

    def _named(self, name: str) -> TopicState:
        try:
            topic = self._log.topic_named(name)
        except NotFoundError as error:
            raise refusal(error) from error
        return self.existing(topic.topic_id)


def unknown_topic(topic_id: TopicId) -> ProtocolError:
    """The error for a topic that does not exist, or that peers cannot use."""
    return refuse(ErrorCode.TOPIC_NOT_FOUND, f"there is no topic {topic_id} here: list the topics, or create it")


def _is_hidden(topic: TopicState) -> bool:
    """True if no list shows the topic, and no peer can name it."""
    return topic.name == DEFAULT_TOPIC_NAME or is_reserved_name(topic.name)


def _visible(store: Store) -> list[TopicState]:
    return [topic for topic in store.catalog if not _is_hidden(topic)]


def _details(store: Store, topic_id: TopicId, is_use: bool) -> TopicReply:
    records, size = _content(store, topic_id)
    topic = store.catalog.find(topic_id)
    assert topic is not None, "a topic with content exists"
    span = topic.floor, topic.next_seq
    now_ns = OsClock().monotonic_ns()
    if is_use:
        topic.used_ns = now_ns
    return replace(
        topic_reply(topic),
        record_count=records,
        byte_count=size,
        span=span,
        settings=topic.config.to_json(),
        effective_priority=topic.priority_at(now_ns),
    )


def _content(store: Store, topic_id: TopicId) -> tuple[int, int]:
    """The visible records and bytes of a topic."""
    topic = store.catalog.find(topic_id)
    if topic is None:
        raise unknown_topic(topic_id)
    return topic.live_records, topic.live_bytes


def topic_reply(topic: TopicState, created_with: Retention | None = None) -> TopicReply:
    """The reply that describes a topic."""
    created_at = topic.created_ms // _MS_PER_S
    return TopicReply(topic.topic_id, topic.name, created_at, topic.epoch, _retention(topic.config), created_with)


def _retention(config: TopicConfig) -> Retention | None:
    """The retention of a topic, if it has one; rounds seconds up, since 0 would be no limit."""
    if not config.ttl_ms and not config.cap_bytes:
        return None
    return Retention(-(-config.ttl_ms // _MS_PER_S), config.cap_bytes)


def _settings(retention: Retention) -> dict[str, JsonValue]:
    # An age that milliseconds cannot express is as good as no limit.
    return {
        "ttl_ms": min(retention.max_age_secs, U64_MAX // _MS_PER_S) * _MS_PER_S,
        "cap_bytes": retention.max_bytes,
    }

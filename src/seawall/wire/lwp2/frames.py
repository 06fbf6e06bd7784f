"""Encode version 2 frames (control, keepalive, ACK, data), and parse control payloads by their command.

| frame      | kind | command              | id                         | payload                                   |
|------------|------|----------------------|----------------------------|-------------------------------------------|
| BATCH      | 04   | 0                    | client_seq                 | prologue and block (`batches`)            |
| ACK        | 08   | 0                    | decided through client_seq | `Ack` of `session.py`                     |
| KEEPALIVE  | 20   | 0 ping, 1 pong       | the ping's                 | –                                         |
| CONTROL    | 40   | `Command`, 01–09, 80 | request or subscription    | `session.py`, `reading.py`, …             |

Commands 01 to 08 keep the payloads of version 1; replies 09, 80 and 81 carry the id of the request. The checksum of
FETCH_DATA and DATA is 0, since each batch inside carries its own; so chunks can be sent from file to socket without
reading them. A command that is unknown, or that only the other side sends, is error 07; the connection stays open.

This module must not know the state of a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from seawall.errors import InvalidInputError
from seawall.wire.format.codes import Command, ErrorCode, KeepaliveCommand, Kind
from seawall.wire.format.fields import Buffer, malformed
from seawall.wire.format.frames import checksum, encode_header_v2
from seawall.wire.lwp1.replies import (
    AuthenticateReply,
    ClusterStatusReply,
    EncodedTopicList,
    RetentionReply,
    TopicDeletedReply,
    TopicListReply,
    TopicReply,
)
from seawall.wire.lwp1.requests import SharedRequest, parse_shared_request
from seawall.wire.lwp2 import (
    files,
    jobs,
    keyed,
    reading,
    routers,
    session,
    sessions,
    subscriptions,
    topics,
    transactions,
    watches,
)
from seawall.wire.lwp2.files import FilesReply, FilesRequest
from seawall.wire.lwp2.jobs import JobAnswer, JobRequest
from seawall.wire.lwp2.keyed import PublishedKeyed, PublishKeyed
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, Committed, DataPrefix, Fetch, Gap
from seawall.wire.lwp2.routers import RouterRequest, RoutersReply
from seawall.wire.lwp2.session import Ack, Error, Goodbye, Hello, Welcome
from seawall.wire.lwp2.sessions import SessionRequest, SessionsReply
from seawall.wire.lwp2.subscriptions import CaughtUp, Credit, Subscribe, Subscribed, Unsubscribe, Unsubscribed
from seawall.wire.lwp2.topics import RecordsDeleted, TopicRequest
from seawall.wire.lwp2.transactions import TransactionRequest, TransactionStatus
from seawall.wire.lwp2.watches import Watch, Watched

SharedReply: TypeAlias = (
    AuthenticateReply
    | TopicReply
    | TopicListReply
    | EncodedTopicList
    | TopicDeletedReply
    | RetentionReply
    | ClusterStatusReply
)
Request: TypeAlias = (
    Hello
    | Goodbye
    | Fetch
    | Subscribe
    | Credit
    | Unsubscribe
    | Commit
    | Bounds
    | FilesRequest
    | TopicRequest
    | TransactionRequest
    | PublishKeyed
    | SessionRequest
    | JobRequest
    | RouterRequest
    | Watch
)
Answer: TypeAlias = (
    Welcome
    | Goodbye
    | Subscribed
    | Unsubscribed
    | Gap
    | CaughtUp
    | Committed
    | BoundsReply
    | FilesReply
    | RecordsDeleted
    | TransactionStatus
    | PublishedKeyed
    | SessionsReply
    | JobAnswer
    | RoutersReply
    | Watched
    | Error
)
ControlPayload: TypeAlias = Request | Answer | SharedRequest | SharedReply


def encode_control(payload: ControlPayload, *, request_id: int = 0, timestamp_ns: int = 0) -> bytes:
    """Encode the control frame of any payload except FETCH_DATA and DATA."""
    data = payload.encode()
    header = encode_header_v2(
        Kind.CONTROL,
        payload.COMMAND,
        request_id=request_id,
        timestamp_ns=timestamp_ns,
        payload_length=len(data),
        payload_crc=checksum(data),
    )
    return header + data


def encode_ping(request_id: int) -> bytes:
    """Encode a ping, which checks that the peer is alive."""
    return encode_header_v2(Kind.KEEPALIVE, KeepaliveCommand.PING, request_id=request_id)


def encode_pong(request_id: int) -> bytes:
    """Encode the answer to a ping, with its id; a pong is never answered."""
    return encode_header_v2(Kind.KEEPALIVE, KeepaliveCommand.PONG, request_id=request_id)


def encode_ack(ack: Ack, *, through: int) -> bytes:
    """Encode an ACK frame; every batch of this connection up to `through` is decided."""
    data = ack.encode()
    header = encode_header_v2(
        Kind.ACK,
        0,
        request_id=through,
        record_count=len(ack.entries),
        payload_length=len(data),
        payload_crc=checksum(data),
    )
    return header + data


def encode_data_start(
    command: Command, prefix: DataPrefix, *, request_id: int, record_count: int, chunks_length: int
) -> bytes:
    """Encode header and prefix of FETCH_DATA or DATA; `chunks_length` bytes of whole batches must follow."""
    if command not in {Command.FETCH_DATA, Command.DATA}:
        raise InvalidInputError(f"{command.name} carries no chunks")
    start = prefix.encode()
    header = encode_header_v2(
        Kind.CONTROL,
        command,
        request_id=request_id,
        record_count=record_count,
        payload_length=len(start) + chunks_length,
    )
    return header + start


def parse_request(command: int, payload: Buffer) -> Request | SharedRequest:
    """Parse a client's control frame."""
    parse = _REQUESTS.get(command)
    if parse is not None:
        return parse(payload)
    shared = parse_shared_request(command, payload)
    if shared is None:
        raise malformed(f"command {command:#x} is unknown or only for servers", ErrorCode.UNKNOWN_COMMAND)
    return shared


def parse_answer(command: int, payload: Buffer) -> Answer:
    """Parse a server's control frame.

    Two groups have parsers of their own: FETCH_DATA and DATA (`iter_chunks` of `reading.py`), and the replies 09, 80
    and 81, whose form depends on the request (`lwp1/replies.py`).
    """
    parse = _ANSWERS.get(command)
    if parse is None:
        raise malformed(f"command {command:#x} is unknown or only for clients", ErrorCode.UNKNOWN_COMMAND)
    return parse(payload)


_REQUESTS: Final[dict[int, Callable[[Buffer], Request]]] = {
    Command.HELLO: session.parse_hello,
    Command.GOODBYE: session.parse_goodbye,
    Command.FETCH: reading.parse_fetch,
    Command.SUBSCRIBE: subscriptions.parse_subscribe,
    Command.CREDIT: subscriptions.parse_credit,
    Command.UNSUBSCRIBE: subscriptions.parse_unsubscribe,
    Command.COMMIT: reading.parse_commit,
    Command.BOUNDS: reading.parse_bounds,
    Command.FILES: files.parse_files_request,
    Command.TOPIC_CREATE: topics.parse_topic_create,
    Command.TOPIC_CONFIGURE: topics.parse_topic_configure,
    Command.TOPIC_DESCRIBE: topics.parse_topic_describe,
    Command.TOPIC_FIND: topics.parse_topic_find,
    Command.RECORDS_DELETE: topics.parse_records_delete,
    Command.STAGING_FIND: transactions.parse_staging_find,
    Command.TRANSACTION_COMMIT: transactions.parse_transaction_commit,
    Command.TRANSACTION_ABORT: transactions.parse_transaction_abort,
    Command.TRANSACTION_STATE: transactions.parse_transaction_state,
    Command.PUBLISH_KEYED: keyed.parse_publish_keyed,
    Command.SESSION_LIST: sessions.parse_session_list,
    Command.SESSION_RETIRE: sessions.parse_session_retire,
    Command.JOB_CLAIM: jobs.parse_job_claim,
    Command.JOB_ACK: jobs.parse_job_ack,
    Command.JOB_NACK: jobs.parse_job_nack,
    Command.JOB_EXTEND: jobs.parse_job_extend,
    Command.JOB_PEEK: jobs.parse_job_peek,
    Command.QUEUE_COUNTS: jobs.parse_queue_counts,
    Command.QUEUE_PURGE: jobs.parse_queue_purge,
    Command.QUEUE_REDRIVE: jobs.parse_queue_redrive,
    Command.JOB_PUSH_UNIQUE: jobs.parse_job_push_unique,
    Command.ROUTER_PUT: routers.parse_router_put,
    Command.ROUTER_DESCRIBE: routers.parse_router_describe,
    Command.ROUTER_LIST: routers.parse_router_list,
    Command.ROUTER_DELETE: routers.parse_router_delete,
    Command.WATCH: watches.parse_watch,
}

_ANSWERS: Final[dict[int, Callable[[Buffer], Answer]]] = {
    Command.WELCOME: session.parse_welcome,
    Command.GOODBYE: session.parse_goodbye,
    Command.SUBSCRIBED: subscriptions.parse_subscribed,
    Command.UNSUBSCRIBED: subscriptions.parse_unsubscribed,
    Command.GAP: reading.parse_gap,
    Command.CAUGHT_UP: subscriptions.parse_caught_up,
    Command.COMMITTED: reading.parse_committed,
    Command.BOUNDS_REPLY: reading.parse_bounds_reply,
    Command.FILES_REPLY: files.parse_files_reply,
    Command.RECORDS_DELETED: topics.parse_records_deleted,
    Command.TRANSACTION_STATUS: transactions.parse_transaction_status,
    Command.PUBLISHED_KEYED: keyed.parse_published_keyed,
    Command.SESSIONS: sessions.parse_sessions_reply,
    Command.JOBS: jobs.parse_jobs,
    Command.JOB_OUTCOME: jobs.parse_job_outcome,
    Command.QUEUE_COUNTS_REPLY: jobs.parse_queue_counts_reply,
    Command.JOB_PUSHED: jobs.parse_job_pushed,
    Command.ROUTERS: routers.parse_routers_reply,
    Command.WATCHED: watches.parse_watched,
    Command.ERROR: session.parse_error,
}

"""Version 2 frames: how control, keepalive, ACK and data frames are put together, and which payload a command has.

| frame      | kind | command              | id                         | payload                                   |
|------------|------|----------------------|----------------------------|-------------------------------------------|
| BATCH      | 04   | 0                    | client_seq                 | prologue and block (`batches`)            |
| ACK        | 08   | 0                    | decided through client_seq | `lwp2_session.Ack`                        |
| KEEPALIVE  | 20   | 0 ping, 1 pong       | the ping's                 | –                                         |
| CONTROL    | 40   | `Command`, 01–09, 80 | request or subscription    | `lwp2_session`, `lwp2_reading`, …         |

Commands 01 to 08 keep the payloads of version 1, answered under 09, 80 and 81 with the id of the request. The checksum
of FETCH_DATA and DATA is 0, since each batch inside carries its own; that lets the chunks go from file to socket
unread. A command that is unknown, or that only the other side sends, is error 07 and the connection goes on.

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
from seawall.wire.lwp2 import files as lwp2_files
from seawall.wire.lwp2 import keyed as lwp2_keyed
from seawall.wire.lwp2 import reading as lwp2_reading
from seawall.wire.lwp2 import session as lwp2_session
from seawall.wire.lwp2 import sessions as lwp2_sessions
from seawall.wire.lwp2 import subscriptions as lwp2_subscriptions
from seawall.wire.lwp2 import topics as lwp2_topics
from seawall.wire.lwp2 import transactions as lwp2_transactions
from seawall.wire.lwp2.files import FilesReply, FilesRequest
from seawall.wire.lwp2.keyed import PublishedKeyed, PublishKeyed
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, Committed, DataPrefix, Fetch, Gap
from seawall.wire.lwp2.session import Ack, Error, Goodbye, Hello, Welcome
from seawall.wire.lwp2.sessions import SessionRequest, SessionsReply
from seawall.wire.lwp2.subscriptions import CaughtUp, Credit, Subscribe, Subscribed, Unsubscribe, Unsubscribed
from seawall.wire.lwp2.topics import RecordsDeleted, TopicRequest
from seawall.wire.lwp2.transactions import TransactionRequest, TransactionStatus

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
    | Error
)
ControlPayload: TypeAlias = Request | Answer | SharedRequest | SharedReply


def encode_control(payload: ControlPayload, *, request_id: int = 0, timestamp_ns: int = 0) -> bytes:
    """The control frame of any payload but FETCH_DATA and DATA."""
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
    """A question whether the peer lives."""
    return encode_header_v2(Kind.KEEPALIVE, KeepaliveCommand.PING, request_id=request_id)


def encode_pong(request_id: int) -> bytes:
    """The answer to a ping, under its id; a pong is never answered."""
    return encode_header_v2(Kind.KEEPALIVE, KeepaliveCommand.PONG, request_id=request_id)


def encode_ack(ack: Ack, *, through: int) -> bytes:
    """The ACK frame: every batch of this connection up to `through` is decided."""
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
    """Header and prefix of FETCH_DATA or DATA; `chunks_length` bytes of whole batches must follow."""
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
    """What a client asks in a control frame."""
    parse = _REQUESTS.get(command)
    if parse is not None:
        return parse(payload)
    shared = parse_shared_request(command, payload)
    if shared is None:
        raise malformed(f"command {command:#x} is unknown or the server's", ErrorCode.UNKNOWN_COMMAND)
    return shared


def parse_answer(command: int, payload: Buffer) -> Answer:
    """What a server says in a control frame.

    Three have readers of their own: FETCH_DATA and DATA (`lwp2_reading.iter_chunks`), and the replies 09, 80 and 81,
    whose form only the request tells (`lwp1_replies`).
    """
    parse = _ANSWERS.get(command)
    if parse is None:
        raise malformed(f"command {command:#x} is unknown or the client's", ErrorCode.UNKNOWN_COMMAND)
    return parse(payload)


_REQUESTS: Final[dict[int, Callable[[Buffer], Request]]] = {
    Command.HELLO: lwp2_session.parse_hello,
    Command.GOODBYE: lwp2_session.parse_goodbye,
    Command.FETCH: lwp2_reading.parse_fetch,
    Command.SUBSCRIBE: lwp2_subscriptions.parse_subscribe,
    Command.CREDIT: lwp2_subscriptions.parse_credit,
    Command.UNSUBSCRIBE: lwp2_subscriptions.parse_unsubscribe,
    Command.COMMIT: lwp2_reading.parse_commit,
    Command.BOUNDS: lwp2_reading.parse_bounds,
    Command.FILES: lwp2_files.parse_files_request,
    Command.TOPIC_CREATE: lwp2_topics.parse_topic_create,
    Command.TOPIC_CONFIGURE: lwp2_topics.parse_topic_configure,
    Command.TOPIC_DESCRIBE: lwp2_topics.parse_topic_describe,
    Command.TOPIC_FIND: lwp2_topics.parse_topic_find,
    Command.RECORDS_DELETE: lwp2_topics.parse_records_delete,
    Command.STAGING_FIND: lwp2_transactions.parse_staging_find,
    Command.TRANSACTION_COMMIT: lwp2_transactions.parse_transaction_commit,
    Command.TRANSACTION_ABORT: lwp2_transactions.parse_transaction_abort,
    Command.TRANSACTION_STATE: lwp2_transactions.parse_transaction_state,
    Command.PUBLISH_KEYED: lwp2_keyed.parse_publish_keyed,
    Command.SESSION_LIST: lwp2_sessions.parse_session_list,
    Command.SESSION_RETIRE: lwp2_sessions.parse_session_retire,
}

_ANSWERS: Final[dict[int, Callable[[Buffer], Answer]]] = {
    Command.WELCOME: lwp2_session.parse_welcome,
    Command.GOODBYE: lwp2_session.parse_goodbye,
    Command.SUBSCRIBED: lwp2_subscriptions.parse_subscribed,
    Command.UNSUBSCRIBED: lwp2_subscriptions.parse_unsubscribed,
    Command.GAP: lwp2_reading.parse_gap,
    Command.CAUGHT_UP: lwp2_subscriptions.parse_caught_up,
    Command.COMMITTED: lwp2_reading.parse_committed,
    Command.BOUNDS_REPLY: lwp2_reading.parse_bounds_reply,
    Command.FILES_REPLY: lwp2_files.parse_files_reply,
    Command.RECORDS_DELETED: lwp2_topics.parse_records_deleted,
    Command.TRANSACTION_TOLD: lwp2_transactions.parse_transaction_status,
    Command.PUBLISHED_KEYED: lwp2_keyed.parse_published_keyed,
    Command.SESSIONS: lwp2_sessions.parse_sessions_reply,
    Command.ERROR: lwp2_session.parse_error,
}

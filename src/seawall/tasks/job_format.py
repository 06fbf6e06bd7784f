"""How a call of a task becomes the record of a job, and back.

The value of a job is a JSON object in UTF-8 with these members, in this order and without blanks:

| member    | JSON                   | meaning                                                                       |
|-----------|------------------------|-------------------------------------------------------------------------------|
| `task`    | string, 1 to 128 chars | the name of the task                                                          |
| `args`    | array                  | its positional arguments                                                      |
| `kwargs`  | object                 | its keyword arguments                                                         |
| `tick_ms` | integer, optional      | jobs of a schedule: the time of the tick, milliseconds since the Unix epoch   |

    {"task":"send_mail","args":["ada"],"kwargs":{"urgent":true}}

The record has the header `content-type: application/json`, and the headers of the job's delay, priority and unique key
(`wire/jobs/options`). How often the job was delivered is known to the queue, not to the record. A worker accepts any
JSON object with these members; it ignores members that it does not know.

Arguments are null, booleans, numbers, strings, lists and objects with string keys. A tuple arrives as a list. All else
is refused when the job is sent: what JSON would silently change (keys that are numbers) or cannot carry (NaN, bytes,
dates). With `MsgpackCodec` the object is MessagePack (`wire/format/msgpack`) and the content type
`application/vnd.msgpack`; then bytes, NaN, and keys that are integers or bytes arrive as they are, too. Another `Codec`
has other rules and another content type. Never is anything unpickled: a job is data, and only names a function that the
worker has registered.

This module must not know queues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, NamedTuple, Protocol

from seawall.api.publishable import Message
from seawall.errors import CorruptionError, InvalidInputError
from seawall.limits import TASK_NAME_SIZE_MAX
from seawall.wire.format.msgpack import Packer, unpacked

CONTENT_TYPE: Final = b"content-type"
_MEMBERS: Final = ("task", "args", "kwargs")
#: Steps to an argument that an error shows.
_PATH_SHOWN: Final = 8


class TaskCall(NamedTuple):
    """A call of a task, as a job carries it."""

    task: str
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] = {}
    #: The time of the tick if a schedule has made the call.
    tick_ms: int | None = None


class Codec(Protocol):
    """Turns calls into bytes and back. Workers must know the codec of the jobs that they get."""

    @property
    def content_type(self) -> str:
        """Names the format in the header of each job."""
        ...

    def encode(self, call: TaskCall) -> bytes:
        """The bytes of a call; `InvalidInputError` if its arguments do not fit the format."""
        ...

    def decode(self, value: bytes) -> TaskCall:
        """The call of these bytes; `CorruptionError` if they are none."""
        ...


class JsonCodec:
    """Calls as JSON."""

    content_type: Final = "application/json"

    def encode(self, call: TaskCall) -> bytes:
        """The JSON of a call; `InvalidInputError` names the argument that does not fit."""
        try:
            for index, value in enumerate(call.args):
                _check(value, f"argument {index + 1}")
            for name, value in call.kwargs.items():
                _check(value, f"argument {name!r}")
            return encoded_json(_members_of(call))
        except RecursionError as error:
            raise InvalidInputError(
                f"task {call.task!r}: an argument is nested too deeply, or contains itself"
            ) from error
        except ValueError as error:
            raise InvalidInputError(f"task {call.task!r}: {error}") from error

    def decode(self, value: bytes) -> TaskCall:
        """The call in a JSON object."""
        try:
            document = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"the job is not JSON: {error}") from error
        return _call_of(document)


class MsgpackCodec:
    """Calls as MessagePack: for arguments that are bytes, and for smaller jobs. Results are JSON all the same."""

    content_type: Final = "application/vnd.msgpack"

    def encode(self, call: TaskCall) -> bytes:
        """The MessagePack of a call; `InvalidInputError` names the argument that does not fit."""
        packer = Packer()
        try:
            packer.add(_members_of(call))
        except ValueError as error:
            raise InvalidInputError(f"task {call.task!r}: {_named(packer.path)} {error}") from error
        return bytes(packer.data)

    def decode(self, value: bytes) -> TaskCall:
        """The call in a MessagePack map."""
        return _call_of(unpacked(value))


JSON: Final = JsonCodec()


def _named(path: Sequence[object]) -> str:
    """The argument that a path in the members of a call leads to; the beginning of a long path."""
    if len(path) < 2:
        return "the call"
    _, argument, *inner = path[:_PATH_SHOWN]
    name = f"{argument + 1}" if isinstance(argument, int) else repr(argument)
    return f"argument {name}" + "".join(f"[{each!r}]" for each in inner)


def _members_of(call: TaskCall) -> dict[str, object]:
    members: dict[str, object] = {"task": call.task, "args": list(call.args), "kwargs": dict(call.kwargs)}
    if call.tick_ms is not None:
        members["tick_ms"] = call.tick_ms
    return members


def _call_of(document: object) -> TaskCall:
    """The call with these members; `CorruptionError` if they are not those of one."""
    if not isinstance(document, dict):
        raise CorruptionError("the job is not an object with the members " + ", ".join(_MEMBERS))
    task, args, kwargs = (document.get(member) for member in _MEMBERS)
    tick_ms = document.get("tick_ms")
    if not isinstance(task, str) or not 1 <= len(task) <= TASK_NAME_SIZE_MAX:
        raise CorruptionError(f'"task" of the job is not a string of 1 to {TASK_NAME_SIZE_MAX} characters')
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        raise CorruptionError('"args" of the job is not an array, or "kwargs" not an object')
    if tick_ms is not None and type(tick_ms) is not int:
        raise CorruptionError('"tick_ms" of the job is not a whole number')
    return TaskCall(task, args, kwargs, tick_ms)


def job_message(call: TaskCall, codec: Codec) -> Message:
    """The record of a job."""
    return Message(codec.encode(call), headers=[(CONTENT_TYPE.decode(), codec.content_type)])


def job_call(value: bytes, headers: Sequence[tuple[bytes, bytes]], codec: Codec) -> TaskCall:
    """The call in a record; `CorruptionError` if there is none. A record without a content type is JSON."""
    found = next((content for name, content in headers if name == CONTENT_TYPE), None)
    content_type = JSON.content_type if found is None else found.decode(errors="replace")
    for each in (codec, JSON):
        if each.content_type == content_type:
            return each.decode(value)
    raise CorruptionError(
        f"the job has the content type {content_type!r}; this worker reads {codec.content_type!r} and "
        f"{JSON.content_type!r}"
    )


def encoded_json(value: object) -> bytes:
    """A value as compact JSON; `ValueError` if it has none."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except TypeError as error:
        raise ValueError(str(error)) from error


def _check(value: object, where: str) -> None:
    """Raise unless a value arrives as what it is; tuples arrive as lists."""
    match value:
        case None | bool() | int() | str():
            return
        case float():
            if not isfinite(value):
                raise ValueError(f"{where} is {value}, which JSON does not have")
        case list() | tuple():
            for index, item in enumerate(value):
                _check(item, f"{where}[{index}]")
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"{where} has the key {key!r}: keys of a JSON object are strings")
                _check(item, f"{where}[{key!r}]")
        case _:
            raise ValueError(
                f"{where} is of type {type(value).__name__}: give null, booleans, numbers, strings, lists or objects"
            )

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
dates). With `MsgpackCodec` the object is MessagePack (<https://msgpack.org>) and the content type
`application/vnd.msgpack`; then bytes, NaN, and keys that are integers or bytes arrive as they are, too. Another `Codec`
has other rules and another content type. Never is anything unpickled: a job is data, and only names a function that the
worker has registered.

This module must not know queues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Final, NamedTuple, Protocol, TypeAlias

from seawall.api.publishable import Message
from seawall.errors import CorruptionError, InvalidInputError, UnsupportedError
from seawall.limits import TASK_NAME_SIZE_MAX

#: Checks a key (true), or a value that contains no others; the text names it.
Check: TypeAlias = Callable[[object, str, bool], None]

CONTENT_TYPE: Final = b"content-type"
_MEMBERS: Final = ("task", "args", "kwargs")


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
        return _encoded(call, encoded_json, _check_json)

    def decode(self, value: bytes) -> TaskCall:
        """The call in a JSON object."""
        try:
            document = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"the job is not JSON: {error}") from error
        return _call_of(document)


class MsgpackCodec:
    """Calls as MessagePack: for arguments that are bytes, and for smaller jobs. Results are JSON all the same.

    Needs the library `msgpack`: `pip install 'seawall[msgpack]'`.
    """

    content_type: Final = "application/vnd.msgpack"

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError as error:
            raise UnsupportedError("MsgpackCodec needs msgpack: pip install 'seawall[msgpack]'") from error
        self._pack: Callable[[object], bytes] = msgpack.packb
        self._unpack: Callable[[bytes], object] = partial(
            msgpack.unpackb, strict_map_key=False, ext_hook=_refuse_extension
        )
        self._invalid = (ValueError, TypeError, RecursionError, msgpack.UnpackException)

    def encode(self, call: TaskCall) -> bytes:
        """The MessagePack of a call; `InvalidInputError` names the argument that does not fit."""
        return _encoded(call, self._pack, _check_msgpack)

    def decode(self, value: bytes) -> TaskCall:
        """The call in a MessagePack map."""
        try:
            document = self._unpack(value)
        except self._invalid as error:
            raise CorruptionError(f"the job is not MessagePack: {error}") from error
        call = _call_of(document)
        try:
            # Times of MessagePack would arrive as objects of the library.
            _check_arguments(call, _check_msgpack)
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"the job is no call of a task: {error}") from error
        return call


JSON: Final = JsonCodec()


def _refuse_extension(code: int, _data: bytes) -> object:
    raise ValueError(f"it has a value of extension type {code}")


def _encoded(call: TaskCall, encode: Callable[[object], bytes], check: Check) -> bytes:
    """The bytes of a call; `InvalidInputError` names the argument that does not fit."""
    try:
        _check_arguments(call, check)
        return encode(_members_of(call))
    except RecursionError as error:
        raise InvalidInputError(f"task {call.task!r}: an argument is nested too deeply, or contains itself") from error
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(f"task {call.task!r}: {error}") from error


def _check_arguments(call: TaskCall, check: Check) -> None:
    for index, value in enumerate(call.args):
        _check_inside(value, f"argument {index + 1}", check)
    for name, value in call.kwargs.items():
        _check_inside(value, f"argument {name!r}", check)


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


def _check_inside(value: object, where: str, check: Check) -> None:
    """Raise `ValueError` unless a value, and all in it, arrives as what it is; tuples arrive as lists."""
    match value:
        case list() | tuple():
            for index, item in enumerate(value):
                _check_inside(item, f"{where}[{index}]", check)
        case dict():
            for key, item in value.items():
                check(key, where, True)
                _check_inside(item, f"{where}[{key!r}]", check)
        case _:
            check(value, where, False)


def _check_json(value: object, where: str, is_key: bool) -> None:
    """Check a key, or a value that contains no others, for JSON."""
    if is_key:
        if not isinstance(value, str):
            raise ValueError(f"{where} has the key {value!r}: keys of a JSON object are strings")
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON does not have")
    elif not isinstance(value, None | bool | int | str):
        raise ValueError(
            f"{where} is of type {type(value).__name__}: give null, booleans, numbers, strings, lists or objects"
        )


def _check_msgpack(value: object, where: str, is_key: bool) -> None:
    """Check a key, or a value that contains no others, for MessagePack."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{where} is an integer of more than 64 bits")
    if is_key:
        if isinstance(value, bool) or not isinstance(value, str | int | bytes):
            raise ValueError(f"{where} has the key {value!r}: give strings, integers or bytes as keys")
    elif not isinstance(value, None | bool | int | float | str | bytes):
        raise ValueError(
            f"{where} is of type {type(value).__name__}: give null, booleans, numbers, strings, bytes, lists or objects"
        )

"""The four kinds of log have one interface: a program switches from one to another by changing the line that opens it.

Names, parameters, defaults and result types of logs, publishers, subscribers, transactions and deliveries are compared
by introspection. On the asyncio kinds a method is a coroutine, or returns an awaitable or an asynchronous iterator; all
else is the same. The exceptions are listed here, with their reasons.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import seawall
from seawall.api.aio_transactions import AsyncStager, AsyncTransaction
from seawall.api.record_readers import AsyncRecordReader, RecordReader
from seawall.api.transactions import Stager, Transaction
from seawall.api.watches import AsyncWatch, Watch
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.client.publish.aio_publisher import AsyncRemotePublisher
from seawall.client.publish.delivery import Delivery as RemoteDelivery
from seawall.client.publish.publisher import RemotePublisher
from seawall.client.read.aio_subscriber import AsyncRemotePositionSubscriber, AsyncRemoteSubscriber
from seawall.client.read.subscriber import RemotePositionSubscriber, RemoteSubscriber
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.aio_publisher import AsyncPublisher
from seawall.engine.api.aio_subscriber import AsyncPositionSubscriber, AsyncSubscriber
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.publisher import Publisher
from seawall.engine.api.subscriber import PositionSubscriber, Subscriber
from seawall.engine.commit.delivery import Delivery

#: The public classes by the function that opens their log. A class that several kinds share is listed for each.
Kinds = Mapping[str, type]

SURFACES: Mapping[str, Kinds] = {
    "log": {"open": EmbeddedLog, "connect": RemoteLog, "open_async": AsyncLog, "connect_async": AsyncRemoteLog},
    "publisher": {
        "open": Publisher,
        "connect": RemotePublisher,
        "open_async": AsyncPublisher,
        "connect_async": AsyncRemotePublisher,
    },
    "subscriber": {
        "open": Subscriber,
        "connect": RemoteSubscriber,
        "open_async": AsyncSubscriber,
        "connect_async": AsyncRemoteSubscriber,
    },
    "position_subscriber": {
        "open": PositionSubscriber,
        "connect": RemotePositionSubscriber,
        "open_async": AsyncPositionSubscriber,
        "connect_async": AsyncRemotePositionSubscriber,
    },
    "record_reader": {
        "open": RecordReader,
        "connect": RecordReader,
        "open_async": AsyncRecordReader,
        "connect_async": AsyncRecordReader,
    },
    "watch": {"open": Watch, "connect": Watch, "open_async": AsyncWatch, "connect_async": AsyncWatch},
    "transaction": {
        "open": Transaction,
        "connect": Transaction,
        "open_async": AsyncTransaction,
        "connect_async": AsyncTransaction,
    },
    "stager": {"open": Stager, "connect": Stager, "open_async": AsyncStager, "connect_async": AsyncStager},
    "delivery": {
        "open": Delivery,
        "connect": RemoteDelivery,
        "open_async": Delivery,
        "connect_async": RemoteDelivery,
    },
}

EMBEDDED, CONNECTED = {"open", "open_async"}, {"connect", "connect_async"}
THREADS, ASYNCIO = {"open", "connect"}, {"open_async", "connect_async"}

#: Names that only some kinds have.
ONLY = {
    ("log", "checkpoint"): EMBEDDED,  # A server checkpoints by itself.
    ("log", "sync"): EMBEDDED,  # A server acknowledges by durability class; more syncing is up to its operator.
    ("log", "status"): CONNECTED,  # It describes the server.
    ("log", "open"): ASYNCIO,  # What `async with` does: a constructor cannot wait.
}

#: Parameters that only some kinds have.
ONLY_PARAMETERS = {
    ("log", "publisher", "when_full"): THREADS,  # On a loop `publish` must not wait, so it raises; `put` waits.
}

#: Results that differ.
RESULTS = {
    ("log", "verify"),  # It needs the directory: connected logs raise `UnsupportedError`.
}

#: Methods that are a coroutine on one of the asyncio kinds, and return something that is awaited on the other.
AWAITED_DIFFERENTLY = {
    # In the embedded log the records are in flight when `publish` returns; a connected one must find the topic first.
    ("log", "publish"),
    ("log", "publish_arrow"),
}

#: Methods of asyncio kinds that do not wait, so callers do not await them.
NOT_AWAITED = {
    *(("log", "records"), ("log", "subscriber"), ("log", "position_subscriber"), ("log", "transaction")),
    *(("log", "watch"), ("log", "queue")),
    # Its result is awaited.
    ("publisher", "publish"),
    ("log", "create_router"),
    ("transaction", "commit_offset"),
    ("transaction", "ack"),
}

#: Names that only other layers of the product use; docs/api.md omits them.
INTERNAL = {
    "log": {
        *(
            "ask",
            "catch_up",
            "pending_batch_of",
            "changing",
            "create_each",
            "disown",
            "finish",
            "index_size",
            "inspecting",
            "look_up_tags",
        ),
        *(
            "offer",
            "own_keys",
            "own_keys_lock",
            "forwarder",
            "flush_thread",
            "commits",
            "queues",
            "next_readable",
            "wait_until",
            "read_on",
            "staging",
            "start_position",
            "start_seq",
        ),
        *("target", "topic_named"),
    },
    "record_reader": set(),
    "publisher": {
        *(
            "check_process",
            "disown",
            "end",
            "finish",
            "flush_timeout",
            "has_space",
            "on_change",
            "open",
            "raise_error",
            "send",
        ),
    },
    "subscriber": {"hand_out", "read_ahead"},
    "position_subscriber": {"hand_out", "read_ahead"},
    "transaction": {"disown", "ended", "parts", "require_open"},
    "stager": set(),
    "watch": set(),
    "delivery": {"decided"},
}

#: Special methods by the statement that calls them.
SPECIAL = {"__iter__": "for", "__aiter__": "for", "__enter__": "with", "__aenter__": "with"}


def names_of(surface: str, kind: type) -> dict[str, object]:
    """The public names of a class: methods, properties, and the attributes of its instances."""
    found: dict[str, object] = dict.fromkeys(attributes_of(kind), "attribute")
    for name in dir(kind):
        if name in SPECIAL:
            found[SPECIAL[name]] = inspect.getattr_static(kind, name)
        elif not name.startswith("_"):
            found[name] = inspect.getattr_static(kind, name)
    return {name: member for name, member in found.items() if name not in INTERNAL[surface]}


def attributes_of(kind: type) -> Iterator[str]:
    """Public attributes that `__init__` sets, in a class and its bases."""
    for each in kind.__mro__:
        init = each.__dict__.get("__init__")
        if each.__module__.startswith("seawall") and inspect.isfunction(init):
            tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
            stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name))
            targets = [node for node in stored if isinstance(node.ctx, ast.Store)]
            yield from (node.attr for node in targets if isinstance(node, ast.Attribute) and node.attr[0] != "_")


def parameters_of(member: object) -> dict[str, tuple[object, object]] | None:
    """Kind and default of each parameter; None if the member is not callable."""
    if not inspect.isfunction(member):
        return None
    parameters = list(inspect.signature(member).parameters.values())[1:]
    return {each.name: (each.kind, each.default) for each in parameters}


def result_of(member: object) -> str:
    """The annotated type of a result, without the prefixes that distinguish the kinds."""
    function = member.fget if isinstance(member, property) else member
    written = str(getattr(function, "__annotations__", {}).get("return", ""))
    return re.sub(r"\b(Async|Remote)+(?=[A-Z])", "", written)


def differences(surface: str, kinds: Kinds) -> list[str]:
    """Every unlisted difference between the classes of a surface."""
    members = {kind_name: names_of(surface, kind) for kind_name, kind in kinds.items()}
    found: list[str] = []
    for name in sorted(set().union(*members.values())):
        having = {kind_name for kind_name in kinds if name in members[kind_name]}
        wanted = ONLY.get((surface, name), set(kinds))
        if having != wanted:
            found.append(f"{surface}.{name}: {sorted(having)} have it, and {sorted(wanted)} should")
        present = {kind_name: members[kind_name][name] for kind_name in kinds if kind_name in having}
        found += [f"{surface}.{name}: {each}" for each in shape_differences(surface, name, present)]
    return found


def shape_differences(surface: str, name: str, members: Mapping[str, object]) -> Iterator[str]:
    """Differences in parameters, defaults and results between the classes that have a name."""
    shapes = {kind_name: parameters_of(member) for kind_name, member in members.items()}
    if len({shape is None for shape in shapes.values()}) > 1:
        yield "a method of some, and no method of others"
        return
    every = dict.fromkeys(each for shape in shapes.values() for each in shape or ())
    for parameter in every:
        wanted = ONLY_PARAMETERS.get((surface, name, parameter), set(members))
        having = {kind_name for kind_name, shape in shapes.items() if parameter in (shape or ())}
        if having != wanted & set(members):
            yield f"parameter {parameter} is one of {sorted(having)}"
        if len({str((shape or {})[parameter]) for kind_name, shape in shapes.items() if kind_name in having}) > 1:
            yield f"parameter {parameter} differs"
    order = list(every)
    for shape in shapes.values():
        if [each for each in order if each in (shape or ())] != list(shape or ()):
            yield "parameters are in another order"
    results = {result_of(member) for member in members.values()}
    if len(results) > 1 and (surface, name) not in RESULTS and name not in ("for", "with"):
        yield f"results are {sorted(results)}"


def awaiting_differences(surface: str, kinds: Kinds) -> list[str]:
    """Methods of the asyncio kinds that are not awaited in the same way."""
    found: list[str] = []
    members = {kind_name: names_of(surface, kinds[kind_name]) for kind_name in ("open_async", "connect_async")}
    for name in sorted(set.intersection(*map(set, members.values()))):
        usages = {kind_name: usage_of(each[name]) for kind_name, each in members.items()}
        if None in usages.values() or name in ("for", "with"):
            continue
        wanted = {"called"} if (surface, name) in NOT_AWAITED else {"awaited", "iterated"}
        if (surface, name) in AWAITED_DIFFERENTLY:
            wanted = {"called", "awaited"}
        elif len(set(usages.values())) > 1:
            found.append(f"{surface}.{name}: {usages}")
        if not set(usages.values()) <= wanted:
            found.append(f"{surface}.{name}: {usages}, and {sorted(wanted)} is right")
    return found


def usage_of(member: object) -> str | None:
    """How a method of an asyncio kind is used."""
    if not inspect.isfunction(member):
        return None
    if inspect.isasyncgenfunction(member):
        return "iterated"
    return "awaited" if inspect.iscoroutinefunction(member) else "called"


@pytest.mark.parametrize("surface", SURFACES)
def test_all_kinds_of_log_have_the_same_interface(surface: str) -> None:
    assert differences(surface, SURFACES[surface]) == []


@pytest.mark.parametrize("surface", [surface for surface in SURFACES if surface != "delivery"])
def test_both_asyncio_kinds_are_awaited_in_the_same_way(surface: str) -> None:
    assert awaiting_differences(surface, SURFACES[surface]) == []


def test_opening_for_asyncio_takes_the_same_parameters() -> None:
    for plain, on_loop in ((seawall.open, seawall.open_async), (seawall.connect, seawall.connect_async)):
        assert inspect.signature(plain).parameters == inspect.signature(on_loop).parameters


def test_every_listed_exception_exists() -> None:
    """An outdated entry would hide the next difference."""
    for (surface, name), kind_names in ONLY.items():
        assert {kind_name for kind_name, kind in SURFACES[surface].items() if hasattr(kind, name)} == kind_names
    for (surface, name, parameter), kind_names in ONLY_PARAMETERS.items():
        kinds = SURFACES[surface].items()
        assert {
            kind_name for kind_name, kind in kinds if parameter in inspect.signature(getattr(kind, name)).parameters
        } == kind_names
    for surface, names in INTERNAL.items():
        kinds = SURFACES[surface].values()
        present = {name for kind in kinds for name in [*dir(kind), *attributes_of(kind)]}
        assert names <= present, surface


def changed(surface: str, kind_name: str, **members: Any) -> Kinds:
    """The classes of a surface, one of them with replaced members."""
    kinds = dict(SURFACES[surface])
    return kinds | {kind_name: type(kinds[kind_name].__name__, (kinds[kind_name],), members)}


def test_an_additional_name_is_reported() -> None:
    def seek(self: object, seq: int) -> None: ...

    (found,) = differences("subscriber", changed("subscriber", "connect", seek=seek))
    assert "subscriber.seek: ['connect'] have it" in found


def test_a_different_parameter_default_or_result_is_reported() -> None:
    async def one_more(self: object, topic: str, seq: int, timeout_s: float | None = None, often: int = 1) -> bool: ...

    async def other_default(self: object, topic: str, seq: int, timeout_s: float | None = 5.0) -> bool: ...

    async def other_order(self: object, seq: int, topic: str, timeout_s: float | None = None) -> bool: ...

    async def other_result(self: object, topic: str, seq: int, timeout_s: float | None = None) -> int: ...

    for wait_for, complaint in (
        (one_more, "parameter often is one of ['open_async']"),
        (other_default, "parameter timeout_s differs"),
        (other_order, "parameters are in another order"),
        (other_result, "results are ['bool', 'int']"),
    ):
        assert f"log.wait_for: {complaint}" in differences("log", changed("log", "open_async", wait_for=wait_for))


def test_a_property_that_became_a_method_is_reported() -> None:
    def in_flight(self: object) -> int: ...

    (found,) = differences("publisher", changed("publisher", "open", in_flight=in_flight))
    assert "a method of some" in found


def test_a_method_awaited_on_one_kind_only_is_reported() -> None:
    def describe(self: object, name: str) -> object: ...

    assert awaiting_differences("log", changed("log", "connect_async", describe=describe)) != []

"""The four kinds of log have one interface: a program switches from one to another by changing the line that opens it.

Names, parameters, defaults and result types of logs, publishers, subscribers, transactions and what else users get from
them are compared by introspection. For asyncio a method is a coroutine, or returns what is awaited or iterated over;
that aside it is the same. What cannot be the same is listed here, with the reason.
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
from seawall.api.transactions import Stager, Transaction
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

#: What users get, by the word that opens their log. Classes that several kinds share stand under each of them.
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
    ("log", "sync"): EMBEDDED,  # What a server acknowledges is durable in its class; syncing more is its operator's.
    ("log", "status"): CONNECTED,  # It is about the server.
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
    # The embedded log has the records on their way when `publish` returns; a connected one has to find the topic first.
    ("log", "publish"),
    ("log", "publish_arrow"),
}

#: Methods of asyncio kinds that do not wait, so nobody awaits them.
NOT_AWAITED = {
    *(("log", "subscriber"), ("log", "position_subscriber"), ("log", "transaction")),
    # What it returns is awaited.
    ("publisher", "publish"),
    ("transaction", "commit_offset"),
}

#: What the layers of the product use of each other; docs/api.md leaves it out.
INTERNAL = {
    "log": {
        *(
            "ask",
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
            "flush_thread",
            "queue",
            "read_on",
            "staging",
            "start_position",
            "start_seq",
        ),
        *("target", "topic_named"),
    },
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
    "delivery": {"decided"},
}

#: What Python calls by itself, by what it is for.
SPECIAL = {"__iter__": "for", "__aiter__": "for", "__enter__": "with", "__aenter__": "with"}


def names_of(surface: str, kind: type) -> dict[str, object]:
    """The public names of a class: methods, properties, and the attributes that its instances get."""
    found: dict[str, object] = dict.fromkeys(attributes_of(kind), "attribute")
    for name in dir(kind):
        if name in SPECIAL:
            found[SPECIAL[name]] = inspect.getattr_static(kind, name)
        elif not name.startswith("_"):
            found[name] = inspect.getattr_static(kind, name)
    return {name: member for name, member in found.items() if name not in INTERNAL[surface]}


def attributes_of(kind: type) -> Iterator[str]:
    """Public attributes that `__init__` sets, of a class and of those that it inherits from."""
    for each in kind.__mro__:
        init = each.__dict__.get("__init__")
        if each.__module__.startswith("seawall") and inspect.isfunction(init):
            tree = ast.parse(textwrap.dedent(inspect.getsource(init)))
            stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name))
            targets = [node for node in stored if isinstance(node.ctx, ast.Store)]
            yield from (node.attr for node in targets if isinstance(node, ast.Attribute) and node.attr[0] != "_")


def parameters_of(member: object) -> dict[str, tuple[object, object]] | None:
    """Kind and default of each parameter; None for what is not called."""
    if not inspect.isfunction(member):
        return None
    parameters = list(inspect.signature(member).parameters.values())[1:]
    return {each.name: (each.kind, each.default) for each in parameters}


def result_of(member: object) -> str:
    """The type of a result as it is written, without what tells the kinds apart."""
    function = member.fget if isinstance(member, property) else member
    written = str(getattr(function, "__annotations__", {}).get("return", ""))
    return re.sub(r"\b(Async|Remote)+(?=[A-Z])", "", written)


def differences(surface: str, kinds: Kinds) -> list[str]:
    """Everything in which the classes of a surface differ and are not listed to."""
    members = {word: names_of(surface, kind) for word, kind in kinds.items()}
    found: list[str] = []
    for name in sorted(set().union(*members.values())):
        having = {word for word in kinds if name in members[word]}
        wanted = ONLY.get((surface, name), set(kinds))
        if having != wanted:
            found.append(f"{surface}.{name}: {sorted(having)} have it, and {sorted(wanted)} should")
        present = {word: members[word][name] for word in kinds if word in having}
        found += [f"{surface}.{name}: {each}" for each in shape_differences(surface, name, present)]
    return found


def shape_differences(surface: str, name: str, members: Mapping[str, object]) -> Iterator[str]:
    """In which parameters, defaults and results those that have a name differ."""
    shapes = {word: parameters_of(member) for word, member in members.items()}
    if len({shape is None for shape in shapes.values()}) > 1:
        yield "a method of some, and no method of others"
        return
    every = dict.fromkeys(each for shape in shapes.values() for each in shape or ())
    for parameter in every:
        wanted = ONLY_PARAMETERS.get((surface, name, parameter), set(members))
        having = {word for word, shape in shapes.items() if parameter in (shape or ())}
        if having != wanted & set(members):
            yield f"parameter {parameter} is one of {sorted(having)}"
        if len({str((shape or {})[parameter]) for word, shape in shapes.items() if word in having}) > 1:
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
    members = {word: names_of(surface, kinds[word]) for word in ("open_async", "connect_async")}
    for name in sorted(set.intersection(*map(set, members.values()))):
        ways = {word: way_of(each[name]) for word, each in members.items()}
        if None in ways.values() or name in ("for", "with"):
            continue
        wanted = {"called"} if (surface, name) in NOT_AWAITED else {"awaited", "iterated"}
        if (surface, name) in AWAITED_DIFFERENTLY:
            wanted = {"called", "awaited"}
        elif len(set(ways.values())) > 1:
            found.append(f"{surface}.{name}: {ways}")
        if not set(ways.values()) <= wanted:
            found.append(f"{surface}.{name}: {ways}, and {sorted(wanted)} is right")
    return found


def way_of(member: object) -> str | None:
    """How a method of an asyncio kind is used."""
    if not inspect.isfunction(member):
        return None
    if inspect.isasyncgenfunction(member):
        return "iterated"
    return "awaited" if inspect.iscoroutinefunction(member) else "called"


@pytest.mark.parametrize("surface", SURFACES)
def test_all_kinds_have_the_same_names_parameters_and_results(surface: str) -> None:
    assert differences(surface, SURFACES[surface]) == []


@pytest.mark.parametrize("surface", [surface for surface in SURFACES if surface != "delivery"])
def test_both_asyncio_kinds_are_awaited_in_the_same_way(surface: str) -> None:
    assert awaiting_differences(surface, SURFACES[surface]) == []


def test_opening_for_asyncio_takes_the_same_parameters() -> None:
    for plain, on_loop in ((seawall.open, seawall.open_async), (seawall.connect, seawall.connect_async)):
        assert inspect.signature(plain).parameters == inspect.signature(on_loop).parameters


def test_what_is_listed_is_there() -> None:
    """An entry that is no exception any more hides the next one."""
    for (surface, name), words in ONLY.items():
        assert {word for word, kind in SURFACES[surface].items() if hasattr(kind, name)} == words
    for (surface, name, parameter), words in ONLY_PARAMETERS.items():
        kinds = SURFACES[surface].items()
        assert {word for word, kind in kinds if parameter in inspect.signature(getattr(kind, name)).parameters} == words
    for surface, names in INTERNAL.items():
        kinds = SURFACES[surface].values()
        present = {name for kind in kinds for name in [*dir(kind), *attributes_of(kind)]}
        assert names <= present, surface


def changed(surface: str, word: str, **members: Any) -> Kinds:
    """The classes of a surface, one of which has other members."""
    kinds = dict(SURFACES[surface])
    return kinds | {word: type(kinds[word].__name__, (kinds[word],), members)}


def test_another_name_is_found() -> None:
    def seek(self: object, seq: int) -> None: ...

    (found,) = differences("subscriber", changed("subscriber", "connect", seek=seek))
    assert "subscriber.seek: ['connect'] have it" in found


def test_another_parameter_default_or_result_is_found() -> None:
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


def test_a_property_that_became_a_method_is_found() -> None:
    def in_flight(self: object) -> int: ...

    (found,) = differences("publisher", changed("publisher", "open", in_flight=in_flight))
    assert "a method of some" in found


def test_a_method_that_is_awaited_on_one_kind_only_is_found() -> None:
    def describe(self: object, name: str) -> object: ...

    assert awaiting_differences("log", changed("log", "connect_async", describe=describe)) != []

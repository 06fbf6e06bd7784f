"""The table of routers: one source for each destination, loops, positions that only rise, and a snapshot of all."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from seawall import limits
from seawall.core.routers import Guarantee, RouterSettings
from seawall.errors import (
    ConflictError,
    CorruptionError,
    FullError,
    InvalidInputError,
    LimitError,
    NotFoundError,
)
from seawall.storage.control.batches import Control
from seawall.storage.control.codec import RouterStep
from seawall.storage.control.documents import Loss, RouterChange
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.persistence import catalog_sections, load_catalog
from seawall.topics.routers import Router
from seawall.wire.format.codes import GapReason

ALL = RouterSettings()
LOOPING = RouterSettings(allow_cycle=True)


class Log:
    """A catalog with some topics, and the position of the next control."""

    def __init__(self, *topics: str) -> None:
        self.catalog = TopicCatalog()
        for name in topics:
            self.apply(self.catalog.create(name, TopicConfig()))

    def apply(self, control: Control | None) -> bool:
        assert control is not None
        return self.catalog.apply(control, self.catalog.next_position)

    def put(self, name: str, source: str, dest: str, settings: RouterSettings = ALL) -> Router:
        self.apply(self.catalog.put_router(name, source, dest, settings))
        return self.catalog.routers.named(name)

    def upstream(self, topic: str) -> list[str]:
        return [each.name for each in self.catalog.routers.upstream(self.catalog.named(topic).topic_id)]


def test_a_router_begins_at_the_end_of_its_source() -> None:
    log = Log("a", "b")
    log.apply(Loss(1, 1, 9, GapReason.CRASH))
    router = log.put("a->b", "a", "b", RouterSettings(tag_prefix="x", guarantee=Guarantee.EXACTLY_ONCE))
    assert router == Router("a->b", 1, 2, RouterSettings(tag_prefix="x", guarantee=Guarantee.EXACTLY_ONCE), 10)
    assert log.catalog.routers.is_dest(2)
    assert not log.catalog.routers.is_dest(1)


def test_changed_settings_keep_the_position() -> None:
    log = Log("a", "b")
    log.put("r", "a", "b")
    log.apply(RouterStep("r", 5, 1, 3))
    assert log.catalog.put_router("r", "a", "b", ALL) is None
    assert log.put("r", "a", "b", RouterSettings(node="n")) == Router("r", 1, 2, RouterSettings(node="n"), 5, 3)


def test_the_topics_of_a_router_are_fixed() -> None:
    log = Log("a", "b", "c")
    log.put("r", "a", "b")
    for topics in (("a", "c"), ("c", "b"), ("b", "a")):
        with pytest.raises(ConflictError, match="router 'r' copies 'a' to 'b', and its topics are fixed"):
            log.catalog.put_router("r", *topics, ALL)


def test_a_topic_has_one_source() -> None:
    log = Log("a", "b", "c")
    log.put("r", "a", "c")
    with pytest.raises(ConflictError, match="'c' gets the records of 'a' by router 'r'"):
        log.catalog.put_router("s", "b", "c", ALL)
    log.put("t", "a", "c", RouterSettings(tag="x"))
    log.apply(log.catalog.routers.plan_delete("r"))
    assert log.catalog.routers.is_dest(3)
    log.apply(log.catalog.routers.plan_delete("t"))
    assert not log.catalog.routers.is_dest(3)
    log.put("s", "b", "c")
    assert len(log.catalog.routers) == 1


def test_loops_are_refused_with_their_topics() -> None:
    log = Log("a", "b", "c", "d", "e")
    log.put("ab", "a", "b")
    log.put("bc", "b", "c")
    with pytest.raises(ConflictError, match="'ca' would close a loop, c -> a -> b -> c: allow_cycle"):
        log.catalog.put_router("ca", "c", "a", ALL)
    log.put("ca", "c", "a", LOOPING)
    with pytest.raises(ConflictError, match="would close a loop"):
        log.catalog.put_router("ca", "c", "a", ALL)
    # Beside the loop, nothing is closed.
    log.put("cd", "c", "d")
    log.put("de", "d", "e")
    log.put("ab2", "a", "b", RouterSettings(tag="x", allow_cycle=True))
    with pytest.raises(InvalidInputError, match="cannot copy topic 'a' to itself"):
        log.catalog.put_router("aa", "a", "a", LOOPING)


def test_upstream_lists_each_router_after_those_before_it() -> None:
    log = Log("a", "b", "c", "d")
    log.put("bc", "b", "c")
    log.put("ab", "a", "b")
    log.put("ab2", "a", "b", RouterSettings(tag="x"))
    log.put("ad", "a", "d")
    assert log.upstream("c") == ["ab", "ab2", "bc"]
    assert log.upstream("b") == ["ab", "ab2"]
    assert log.upstream("a") == []
    log.put("ca", "c", "a", LOOPING)
    assert log.upstream("c") == ["ca", "ab", "ab2", "bc"]
    assert log.upstream("d") == ["ab", "ab2", "bc", "ca", "ad"]


def test_a_deleted_topic_takes_its_routers_along() -> None:
    log = Log("a", "b", "c")
    log.put("ab", "a", "b")
    log.put("bc", "b", "c")
    log.apply(log.catalog.delete("b"))
    assert len(log.catalog.routers) == 0
    log.apply(log.catalog.create("b", TopicConfig()))
    log.put("cb", "c", "b")


def test_positions_only_rise() -> None:
    """INV-ROUTER-ONWARD."""
    log = Log("a", "b")
    router = log.put("r", "a", "b")
    log.apply(RouterStep("r", 5, 1, 3))
    assert (router.next_seq, router.forwarded) == (5, 3)
    for previous, next_seq in ((5, 5), (5, 4)):
        with pytest.raises(InvalidInputError, match=f"cannot step from {previous} to {next_seq}"):
            RouterStep("r", next_seq, previous, 4)
    assert not log.apply(RouterStep("other", 5, 1, 3))
    # A damaged log lost that the router was deleted and created again.
    log.apply(RouterStep("r", 3, 2, 1))
    assert (router.next_seq, router.forwarded) == (3, 1)


def test_controls_after_damage_do_no_harm() -> None:
    log = Log("a", "b", "c")
    settings = ALL.document()
    assert not log.apply(RouterChange("r", 1, 9, 1, None, settings))
    assert log.apply(RouterChange("r", 1, 2, 1, settings, None))
    log.apply(RouterChange("r", 1, 2, 1, None, settings))
    # The delete in between was lost.
    log.apply(RouterChange("r", 1, 3, 4, None, settings))
    assert log.catalog.routers.named("r") == Router("r", 1, 3, ALL, 4)
    assert not log.catalog.routers.is_dest(2)
    with pytest.raises(CorruptionError, match="stored router"):
        log.apply(RouterChange("s", 1, 2, 4, None, {"colour": "red"}))


def test_unknown_names_and_topics_are_refused() -> None:
    log = Log("a", "b")
    with pytest.raises(NotFoundError, match="no router 'r'"):
        log.catalog.routers.plan_delete("r")
    with pytest.raises(NotFoundError, match="no topic 'c'"):
        log.catalog.put_router("r", "a", "c", ALL)
    log.apply(log.catalog.create("brief", TopicConfig(durability="ephemeral")))
    with pytest.raises(ConflictError, match="'brief' is kept in memory alone"):
        log.catalog.put_router("r", "a", "brief", ALL)
    for name in ("", ">r", "a b", "_r"):
        with pytest.raises(InvalidInputError, match="router name"):
            log.catalog.put_router(name, "a", "b", ALL)
    with pytest.raises(LimitError, match="has 256 characters"):
        log.catalog.put_router("r" * 256, "a", "b", ALL)


def test_the_number_of_routers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTERS_MAX", 1)
    log = Log("a", "b", "c")
    log.put("r", "a", "b")
    with pytest.raises(FullError, match="there are 1 already"):
        log.catalog.put_router("s", "a", "c", ALL)
    log.put("r", "a", "b", RouterSettings(tag="x"))


@pytest.mark.parametrize(
    ("document", "error", "words"),
    [
        ({"tag": "a", "tag_prefix": "b"}, InvalidInputError, "not by both"),
        ({"tag": 5}, InvalidInputError, "tag of a router is text, not 5"),
        ({"tag": "x" * 257}, LimitError, "257 bytes; at most 256"),
        ({"node": "x" * 129}, LimitError, "129 bytes; at most 128"),
        ({"node": "\ud800"}, InvalidInputError, "UTF-8"),
        ({"preserve_tag": 1}, InvalidInputError, "preserve_tag of a router is true or false"),
        ({"guarantee": "never"}, InvalidInputError, "at_least_once or exactly_once"),
        ({"colour": "red"}, InvalidInputError, "colour: a router has no such setting"),
    ],
)
def test_bad_settings_are_refused(document: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RouterSettings.of(document)


def test_settings_survive_their_document() -> None:
    for settings in (ALL, RouterSettings("t", None, "n", False, False, True, Guarantee.EXACTLY_ONCE)):
        assert RouterSettings.of(json.loads(json.dumps(settings.document()))) == settings


def stored() -> tuple[Log, Snapshot]:
    log = Log("a", "b", "c")
    log.put("a->b", "a", "b", RouterSettings(tag="x"))
    log.put("bc", "b", "c")
    log.apply(RouterStep("bc", 5, 1, 3))
    return log, Snapshot(log.catalog.next_position, 0, 0, catalog_sections(log.catalog))


def test_a_snapshot_restores_every_router() -> None:
    log, snapshot = stored()
    loaded = load_catalog(snapshot)
    assert list(loaded.routers) == list(log.catalog.routers)
    assert catalog_sections(loaded) == snapshot.sections
    older = {kind: data for kind, data in snapshot.sections.items() if kind is not SectionKind.ROUTERS}
    assert len(load_catalog(Snapshot(9, 0, 0, older)).routers) == 0


@pytest.mark.parametrize(
    "edit",
    [
        lambda row: row.pop(),
        lambda row: row.__setitem__(0, "_x"),
        lambda row: row.__setitem__(1, 9),
        lambda row: row.__setitem__(3, -1),
        lambda row: row.__setitem__(5, {"tag": 7}),
        lambda row: row.__setitem__(0, "bc"),
    ],
)
def test_a_damaged_section_is_refused(edit: Callable[[list[object]], object]) -> None:
    _, snapshot = stored()
    document = json.loads(snapshot.sections[SectionKind.ROUTERS])
    edit(document["routers"][0])
    sections = {**snapshot.sections, SectionKind.ROUTERS: json.dumps(document).encode()}
    with pytest.raises(CorruptionError):
        load_catalog(Snapshot(9, 0, 0, sections))

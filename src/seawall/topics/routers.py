"""The routers of a data directory: which topics they connect, what they copy, and how far they are.

    source ── router ──▶ destination       a router reads its source at `next_seq`, and counts its copies in `forwarded`

A topic is the destination of one source at most; several routers may copy from that source, each with its own filter.
Routers form a loop only if the one that closes it allows loops. A router goes when one of its topics is deleted.

There are two kinds of methods. The planning ones (`plan_put`, `plan_delete`) return the control that would make a
change, or refuse; they change nothing. `change`, `step` and `forget_topic` execute what is in the log, in log order.

INV-ROUTER-ONWARD: a router never reads a seq of its source again: `next_seq` only rises, by the control that also has
the copies. So each record is copied at most once, whatever is replayed.

This module must not know records, nor how they are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from seawall import limits
from seawall.core.checks import check
from seawall.core.identifiers import check_router_name
from seawall.core.routers import RouterSettings
from seawall.core.types import Seq, TopicId
from seawall.errors import ConflictError, CorruptionError, FullError, InvalidInputError, NotFoundError
from seawall.storage.control.codec import RouterStep
from seawall.storage.control.documents import RouterChange
from seawall.wire.format.fields import JsonObject


@dataclass(slots=True)
class Router:
    """One router. Its fields are read-only for others; only the table changes them."""

    name: str
    source_id: TopicId
    dest_id: TopicId
    settings: RouterSettings
    next_seq: Seq
    forwarded: int = 0


class RouterTable:
    """All routers, as of the position of the catalog."""

    __slots__ = ("_by_dest", "_by_name", "_by_source", "_order", "change_count")

    def __init__(self) -> None:
        self._by_name: dict[str, Router] = {}
        #: The routers of a destination, and of a source, by rising age.
        self._by_dest: dict[TopicId, list[Router]] = {}
        self._by_source: dict[TopicId, list[Router]] = {}
        #: The result of `in_order`, until the table changes.
        self._order: list[Router] | None = None
        #: How often a router was added or removed.
        self.change_count = 0

    def __len__(self) -> int:
        """The number of routers."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[Router]:
        """Every router, in the order of creation."""
        return iter(self._by_name.values())

    # --- queries -----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Router | None:
        """The router with this name, or None."""
        return self._by_name.get(name)

    def named(self, name: str) -> Router:
        """The router with this name; `NotFoundError` if there is none."""
        router = self._by_name.get(name)
        if router is None:
            raise NotFoundError(f"there is no router {name!r} here; list the routers, or create it")
        return router

    def is_dest(self, topic_id: TopicId) -> bool:
        """True if some router copies to a topic."""
        return topic_id in self._by_dest

    def of_source(self, topic_id: TopicId) -> list[Router]:
        """The routers that copy from a topic."""
        return self._by_source.get(topic_id, [])

    def upstream(self, topic_id: TopicId) -> list[Router]:
        """Every router whose copies may reach a topic, each after those that copy to its source; a loop is cut."""
        found: list[Router] = []
        seen: set[TopicId] = set()
        while topic_id not in seen and (routers := self._by_dest.get(topic_id)):
            seen.add(topic_id)
            found[:0] = routers
            topic_id = routers[0].source_id
        return found

    def in_order(self) -> list[Router]:
        """Every router, each after those that copy to its source."""
        if self._order is None:
            found: dict[str, Router] = {}
            for router in self:
                if router.name not in found:
                    found |= {each.name: each for each in self.upstream(router.dest_id)}
            self._order = list(found.values())
        return self._order

    # --- planning ----------------------------------------------------------------------------------------------------

    def plan_put(
        self,
        name: str,
        source_id: TopicId,
        dest_id: TopicId,
        settings: RouterSettings,
        next_seq: Seq,
        name_of: Callable[[TopicId], str],
    ) -> RouterChange | None:
        """The control that creates a router, which reads its source from `next_seq` on, or changes its settings.

        None if nothing would change.
        """
        check_router_name(name)
        if source_id == dest_id:
            raise InvalidInputError(
                f"router {name!r} cannot copy topic {name_of(dest_id)!r} to itself: give two different topics"
            )
        router = self._by_name.get(name)
        if router is not None and (router.source_id, router.dest_id) != (source_id, dest_id):
            raise ConflictError(
                f"router {name!r} copies {name_of(router.source_id)!r} to {name_of(router.dest_id)!r}, and its topics "
                "are fixed: delete it and create it again; it then begins at the end of its source"
            )
        if router is None and len(self._by_name) >= limits.ROUTERS_MAX:
            raise FullError(f"no router can be added: there are {limits.ROUTERS_MAX} already; delete some")
        self._check_only_source(name, source_id, dest_id, name_of)
        if not settings.allow_cycle:
            self._check_no_loop(name, source_id, dest_id, name_of)
        if router is None:
            return RouterChange(name, source_id, dest_id, next_seq, None, settings.document())
        if router.settings == settings:
            return None
        before = router.settings.document()
        return RouterChange(name, source_id, dest_id, router.next_seq, before, settings.document())

    def plan_delete(self, name: str) -> RouterChange:
        """The control that deletes a router."""
        router = self.named(name)
        before = router.settings.document()
        return RouterChange(name, router.source_id, router.dest_id, router.next_seq, before, None)

    def _check_only_source(
        self, name: str, source_id: TopicId, dest_id: TopicId, name_of: Callable[[TopicId], str]
    ) -> None:
        for other in self._by_dest.get(dest_id, ()):
            if other.source_id != source_id:
                raise ConflictError(
                    f"router {name!r}: topic {name_of(dest_id)!r} gets the records of {name_of(other.source_id)!r} by "
                    f"router {other.name!r}, and a topic has one source; choose another destination"
                )

    def _check_no_loop(
        self, name: str, source_id: TopicId, dest_id: TopicId, name_of: Callable[[TopicId], str]
    ) -> None:
        """Refuse a router if others lead from its destination to its source."""
        # An ordered set; a loop that is there already ends the walk.
        path = {source_id: None}
        at = source_id
        while at != dest_id and (routers := self._by_dest.get(at)) and routers[0].source_id not in path:
            at = routers[0].source_id
            path[at] = None
        if at == dest_id:
            loop = " -> ".join(name_of(each) for each in (source_id, *reversed(path)))
            raise ConflictError(f"router {name!r} would close a loop, {loop}: allow_cycle=True allows it")

    # --- applying the log --------------------------------------------------------------------------------------------

    def change(self, change: RouterChange) -> None:
        """Create, change or delete a router."""
        router = self._by_name.get(change.name)
        if change.after is None:
            if router is not None:
                self._remove(router)
            return
        settings = stored_settings(change.after)
        if router is not None and (router.source_id, router.dest_id) == (change.source_id, change.dest_id):
            router.settings = settings
            return
        if router is not None:
            # Only in a damaged log, which lost the delete in between.
            self._remove(router)
        self.restore(Router(change.name, change.source_id, change.dest_id, settings, change.next_seq))

    def step(self, step: RouterStep) -> bool:
        """Advance a router; false if it does not exist."""
        router = self._by_name.get(step.name)
        if router is None:
            return False
        # Later values win, also after damage in the log, which may have lost that the router was created anew.
        router.next_seq, router.forwarded = step.next_seq, step.forwarded
        return True

    def forget_topic(self, topic_id: TopicId) -> None:
        """Remove the routers of a deleted topic."""
        for router in [*self._by_source.get(topic_id, ()), *self._by_dest.get(topic_id, ())]:
            self._remove(router)

    def restore(self, router: Router) -> None:
        """Add a router from a snapshot or a create."""
        check(router.name not in self._by_name, "INV-ROUTER-ONWARD", f"router {router.name} exists")
        self._by_name[router.name] = router
        self._order = None
        self.change_count += 1
        self._by_dest.setdefault(router.dest_id, []).append(router)
        self._by_source.setdefault(router.source_id, []).append(router)

    def _remove(self, router: Router) -> None:
        del self._by_name[router.name]
        self._order = None
        self.change_count += 1
        for table, topic_id in ((self._by_dest, router.dest_id), (self._by_source, router.source_id)):
            left = [each for each in table[topic_id] if each is not router]
            if left:
                table[topic_id] = left
            else:
                del table[topic_id]


def stored_settings(document: JsonObject) -> RouterSettings:
    """Parse settings from the log or a snapshot; invalid ones are damage, since none are ever written."""
    try:
        return RouterSettings.of(document)
    except InvalidInputError as error:
        raise CorruptionError(f"stored router: {error}") from error

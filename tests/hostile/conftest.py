"""Fixtures for attacks on a server in its own process; helpers beside the tests can be imported by their names.

Tests marked `slow` run with `make hostile` and `make test-slow`; the others are the short form in `make test`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hostile_node import HostileNode, StartNode

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Start nodes as processes; those that still run after the test are killed."""
    from hostile_node import HostileNode

    nodes: list[HostileNode] = []

    def start(*arguments: str, data: str = "data", descriptors: int | None = None) -> HostileNode:
        node = HostileNode(tmp_path / data, *arguments, descriptors=descriptors)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.kill()


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileNode]:
    """One node for all tests of a module, which must still run and stop in order after them."""
    from hostile_node import HostileNode

    node = HostileNode(tmp_path_factory.mktemp("shared") / "data")
    node.start()
    yield node
    try:
        assert node.stop() == 0, node.stderr
    finally:
        node.kill()

"""Attacks on a server in a process of its own; helpers beside the tests can be imported by their names.

Tests marked `slow` run with `make hostile` and `make test-slow`; the others are the short form in `make test`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hostile_node import StartNode

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

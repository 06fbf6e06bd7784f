"""Fixtures of the server tests: event loops to run a test on; helpers beside the tests can be imported by their names.

Most tests run on the event loop of the product. Those whose outcome may depend on the transport run on both kinds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parent))

RunOnLoop = Callable[[Coroutine[Any, Any, Any]], Any]
LOOP_FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def _run(make_loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(work)


@pytest.fixture
def on_loop() -> RunOnLoop:
    """Run a coroutine on a fresh loop of the kind that a server uses."""
    return partial(_run, uvloop.new_event_loop)


@pytest.fixture(params=LOOP_FACTORIES)
def on_each_loop(request: pytest.FixtureRequest) -> RunOnLoop:
    """Run a coroutine on a fresh loop, in one test for each kind of loop."""
    return partial(_run, LOOP_FACTORIES[request.param])


@pytest.fixture
def served() -> Callable[..., None]:
    """Run a coroutine against a server of version 1, on the kind of loop that a server uses."""
    from v1_server import served as served_on

    return partial(served_on, uvloop.new_event_loop)


@pytest.fixture(params=LOOP_FACTORIES)
def served_on_each_loop(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a coroutine against a server of version 1, in one test for each kind of loop."""
    from v1_server import served as served_on

    return partial(served_on, LOOP_FACTORIES[request.param])

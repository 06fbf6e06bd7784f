"""Helpers beside the tests of this folder can be imported by their names; and event loops of both kinds."""

import asyncio
import sys
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request):
    """Run a coroutine on a fresh loop of one kind."""

    def run(work):
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work)

    return run

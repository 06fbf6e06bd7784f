"""Runs of the simulated pod by seed, and the report about a run that breaks a guarantee."""

from __future__ import annotations

import traceback

from seawall.errors import SeawallError
from seawall.testing.checkers.order_state import OrderingViolationError
from seawall.testing.pod.run import PodRun

#: What a run may end with if something in the pod is wrong.
ERRORS = (SeawallError, AssertionError, ValueError, KeyError, IndexError)

#: Steps shown before the failing one, or before the end.
SHOWN = 30


def failure_of(seed: int) -> str | None:
    """What is wrong with the run of a seed, for people; None if nothing is."""
    made = PodRun(seed)
    try:
        made.run()
    except OrderingViolationError as error:
        return f"seed {seed} breaks a guarantee\n{error}\n{_around(made, error.steps[-1].number)}"
    except ERRORS:
        return f"seed {seed} ended with an error\n{traceback.format_exc()}\n{_around(made, len(made.pod.history))}"
    return None


def _around(made: PodRun, number: int) -> str:
    steps = list(made.pod.history)
    shown = steps[max(0, number - SHOWN) : number + 1]
    return "\n".join((f"{made.pod.plan}", f"{made.fault_rates}", "what happened until then:", *map(str, shown)))

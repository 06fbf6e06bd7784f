"""The pytest fixtures for users: one log for each test, and no heavy imports without a log."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "seawall.testing.pytest_plugin"

TESTS = """
import sys

import pytest

HEAVY = {"numba", "numpy", "pyarrow"}

def test_nothing_is_loaded_for_a_path(seawall_path):
    assert not seawall_path.exists()
    assert not HEAVY & set(sys.modules)

def test_a_log_is_fresh(seawall_log, seawall_path):
    assert seawall_log.topics() == []
    seawall_log.create_topic("events")
    seawall_log.publish("events", [b"x" * 1_000_000] * 40)
    assert len(seawall_log.read_arrow("events")) == 40
    assert sum(path.stat().st_size for path in seawall_path.rglob("wal*")) <= 32 << 20
    test_a_log_is_fresh.log = seawall_log

def test_each_test_has_its_own_and_the_last_is_closed(seawall_log):
    from seawall.errors import WrongStateError

    assert seawall_log.topics() == []
    with pytest.raises(WrongStateError, match="closed"):
        test_a_log_is_fresh.log.topics()
"""


def test_each_test_gets_its_own_log(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # Loaded explicitly, so that it does not matter whether it is installed as a plugin.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # The process publishes 40 MB: kernels as plain Python take minutes for them.
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)


def test_the_plugin_is_declared_in_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"seawall": PLUGIN}
    module = import_module(PLUGIN)
    assert {"seawall_log", "seawall_path"} <= set(vars(module))


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = f"import sys, {PLUGIN}\nprint({{'numba', 'numpy', 'pyarrow', 'rich'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"

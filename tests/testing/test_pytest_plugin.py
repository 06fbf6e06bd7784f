"""The fixtures for users: found by pytest, one log for each test, and nothing heavy for those who do not ask."""

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
    assert seawall_log.topics() == []
    try:
        test_a_log_is_fresh.log.topics()
    except ValueError as error:
        assert "closed" in str(error)
    else:
        raise AssertionError("it is open")
"""


def test_the_fixtures(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # Named by hand: whether it is installed as a plugin as well must not matter here.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", PLUGIN, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)


def test_it_is_declared_as_a_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"seawall": PLUGIN}
    module = import_module(PLUGIN)
    assert {"seawall_log", "seawall_path"} <= set(vars(module))


def test_loading_the_plugin_is_light() -> None:
    code = f"import sys, {PLUGIN}\nprint({{'numba', 'numpy', 'pyarrow', 'rich'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"

"""How tests are given to workers: a worker that is lost costs one test, and another takes its place."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

#: Test 5 ends its worker, as a timeout and a crash do; each other one says which worker ran it.
TESTS = """
import os
import time
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(60))
def test_ends_at_five(number: int, worker_id: str) -> None:
    if number == 5:
        os._exit(1)
    time.sleep(0.2)
    Path(f"ran-{number}").write_text(worker_id)
"""


def test_the_worker_that_replaces_a_lost_one_gets_tests(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-p", "no:seawall", "."]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, check=False, capture_output=True, text=True, timeout=90)
    assert "1 failed, 59 passed" in done.stdout
    ran = Counter(path.read_text(encoding="utf-8") for path in tmp_path.glob("ran-*"))
    assert ran.total() == 59
    assert len(ran) == 3
    assert min(ran.values()) > 1

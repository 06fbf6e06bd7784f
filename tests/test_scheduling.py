"""How tests are given to workers: a worker that is lost costs one test, and another takes its place."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

#: Test 5 ends its worker, as a timeout and a crash do. The worker that is left waits, at a pipe, for the second test of
#: the one that replaces it. Each test says which worker ran it.
TESTS = """
import os
from pathlib import Path

import pytest

ran = []

@pytest.mark.parametrize("number", range(20))
def test_ends_at_five(number: int, worker_id: str) -> None:
    if number == 5:
        os._exit(1)
    if worker_id == "gw2" and len(ran) == 1:
        open("gate", "w").close()
    if worker_id in ("gw0", "gw1") and number > 5 and max(ran, default=0) < 6:
        open("gate").close()
    ran.append(number)
    Path(f"ran-{number}").write_text(worker_id)
"""


def test_the_worker_that_replaces_a_lost_one_gets_tests(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    os.mkfifo(tmp_path / "gate")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--timeout=30", "-p", "no:cacheprovider"]
    command += ["-p", "no:seawall", "."]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=tmp_path, env=environ, check=False, capture_output=True, text=True, timeout=90)
    assert "1 failed, 19 passed" in done.stdout
    ran = Counter(path.read_text(encoding="utf-8") for path in tmp_path.glob("ran-*"))
    assert ran.total() == 19
    assert len(ran) == 3
    assert ran["gw2"] > 1

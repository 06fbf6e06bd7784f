"""Every example of README.md and docs/ runs, with real files, processes and servers (`page_runner.py`)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_runner import Block, PageRunner, blocks_of, console_commands, is_slow, run_page, shows

ROOT = Path(__file__).parents[2]


def pages() -> Iterator[tuple[str, list[Block]]]:
    """Every page with its examples."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        try:
            yield name, blocks_of(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


PAGES = dict(pages())
RUNNABLE = [name for name, blocks in PAGES.items() if any(block.mark != "not run" for block in blocks)]
SLOW = [name for name, blocks in PAGES.items() if any(map(is_slow, blocks))]


def require_tools(name: str) -> None:
    """Skip a page that says `<!-- needs: program -->` where the program is not installed."""
    for program in re.findall(r"^<!-- needs: (\w+) -->$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
        if shutil.which(program) is None:
            pytest.skip(f"{name} needs {program}")


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_examples_of_a_page_run(name: str, tmp_path: Path) -> None:
    require_tools(name)
    run_page(ROOT / name, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLOW)
def test_the_slow_examples_of_a_page_run(name: str) -> None:
    """In a separate process: a Spark session lives until its process exits."""
    require_tools(name)
    runner = Path(__file__).with_name("page_runner.py")
    command = [sys.executable, runner, ROOT / name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_with_examples_are_found() -> None:
    assert {"README.md", "docs/api.md", "docs/tutorial.md", "docs/how-to/order.md"} <= set(RUNNABLE)
    assert {"README.md", "docs/spark.md"} <= set(SLOW)


# --- tests of the runner ----------------------------------------------------------------------------------------


def run_text(text: str, directory: Path, *, slow: bool = False) -> None:
    page = directory / "page.md"
    page.write_text(text, encoding="utf-8")
    with PageRunner(page, directory) as runner:
        runner.run(slow=slow)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\na = 1\n```\n\n```python\nassert a == 2\n```\n", AssertionError),
        ("```python\nimport asyncio\n\nawait asyncio.sleep(0)\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\ndef test_it():\n    assert False\n```\n", AssertionError),
        ("```sh\nfalse | true\n```\n", AssertionError),
        ("```console\n$ echo a\nb\n```\n", AssertionError),
        ("<!-- server -->\n```sh\nfalse\n```\n\n```sh\n: 127.0.0.1:1992\n```\n", AssertionError),
        ("<!-- slow: here -->\n```python\n1 / 0\n```\n", ZeroDivisionError),
    ],
)
def test_a_wrong_example_fails(text: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        run_text(text, tmp_path, slow=True)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run -->\n```sh\nfalse\n```\n",
        "<!-- not run: elsewhere -->\n\n```sh\nfalse\n```\n",
        "1. a list\n\n   ```python\n   1 / 0\n   ```\n",
        "```bash\nfalse\n```\n",
        "``` python\n1 / 0\n```\n",
    ],
)
def test_unparsable_blocks_and_marks_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"understood|why"):
        blocks_of(text)


def test_marked_blocks_do_not_run(tmp_path: Path) -> None:
    run_text("<!-- not run: breaks -->\n```sh\nfalse\n```\n\n<!-- slow: breaks -->\n```sh\nfalse\n```\n", tmp_path)


def test_console_blocks_are_compared_with_the_output() -> None:
    assert list(console_commands("$ a | b\n1\n2\n$ c\n")) == [("a | b", "1\n2\n"), ("c", "")]
    assert shows("on …:1\nand …\n", "on x:1\nand\n y\n") is False
    assert shows("on …:1\nand…\n", "on x:1\nand\n y\n")
    assert not shows("", "x\n")

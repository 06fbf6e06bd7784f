"""Runs the examples of a page as a reader would: top to bottom, in one empty directory.

    python tests/docs/page_runner.py docs/tutorial.md

| block          | is run                                                                                          |
|----------------|-------------------------------------------------------------------------------------------------|
| ```` ```python ```` | in one namespace for the page; `await` is allowed; functions `test_…` are run by pytest    |
| ```` ```sh ````     | by bash, which must exit with 0                                                            |
| ```` ```console ```` | lines behind `$ ` by bash; the lines below each are what it prints, where `…` is anything |

A comment on the line before a block marks it:

    <!-- server -->          its command is a server, which starts if a block that runs has its address; it runs until
                             the page ends, and must then exit with 0
    <!-- slow: reason -->    runs only if slow blocks are enabled
    <!-- not run: reason --> does not run

Addresses of a page are `127.0.0.1:1992` and the like. Servers get free ports, so that pages may run at once; the port
that a page names is replaced by the one that its server got.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

FENCE = re.compile(
    r"^(?:<!-- (?P<mark>server|slow|not run)(?:: (?P<reason>[^\n]+))? -->\n)?"
    r"```(?P<language>python|sh|console)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
#: Anything intended as a block or a mark; one that `FENCE` does not match is an error of the page.
INTENDED = re.compile(r"^ *(?:```+ *(?:python|py|sh|bash|shell|console)\b|<!-- *(?:server|slow|not run))", re.MULTILINE)

PORT = 1992
SERVES = re.compile(r"on 127\.0\.0\.1:(\d+)\b")
#: Settings that make small queries quick; no example depends on them.
SPARK_SETTINGS = (
    *("spark.sql.shuffle.partitions 2", "spark.ui.enabled false", "spark.ui.showConsoleProgress false"),
    *("spark.driver.host 127.0.0.1", "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1", "spark.log.level ERROR"),
)
#: Longer than any block takes, even on a busy machine.
TIMEOUT_S = 100


@dataclass(frozen=True, slots=True)
class Block:
    """An example of a page."""

    language: str
    code: str
    #: The line of the page where its code begins.
    line: int
    mark: str | None = None


def blocks_of(text: str) -> list[Block]:
    """The examples of a page; `ValueError` if something looks like one and cannot be parsed."""
    found = []
    matched = 0
    for match in FENCE.finditer(text):
        if match["mark"] in ("slow", "not run") and not match["reason"]:
            raise ValueError(f"line {text.count(chr(10), 0, match.start()) + 1}: say why, after a colon")
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(match["language"], match["code"], line, match["mark"]))
        matched += len(INTENDED.findall(match[0]))
    if matched != len(INTENDED.findall(text)):
        raise ValueError(
            "a block or a mark is not understood: a mark must directly precede its block, which must not be indented"
        )
    return found


def is_slow(block: Block) -> bool:
    """True if it runs only with slow blocks enabled."""
    return block.mark == "slow"


class PageRunner:
    """Runs the blocks of one page. A context manager that stops the servers of the page."""

    def __init__(self, page: Path, directory: Path) -> None:
        self._page = page
        self._directory = directory
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._ports: dict[int, int] = {}
        self._servers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> PageRunner:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.send_signal(signal.SIGTERM)
        ends = [ended(server) for server in self._servers]
        assert all(code == 0 for code, _ in ends), ends

    def run(self, *, slow: bool) -> None:
        """Run every block, slow ones only if `slow` is set."""
        blocks = blocks_of(self._page.read_text(encoding="utf-8"))
        blocks = [block for block in blocks if block.mark != "not run" and (slow or not is_slow(block))]
        for index, block in enumerate(blocks):
            code = self._with_ports(block.code)
            if block.mark == "server":
                if any(f"127.0.0.1:{port_of(code)}" in later.code for later in blocks[index:]):
                    self._serve(code)
            elif block.language == "python":
                self._run_python(code, block.line)
            elif block.language == "sh":
                self._run_shell(code)
            else:
                self._run_console(code)

    def _with_ports(self, code: str) -> str:
        return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: str(self._ports.get(int(port[0]), port[0])), code)

    def _run_python(self, code: str, line: int) -> None:
        # Tracebacks show the lines of the page.
        tree = compile("\n" * (line - 1) + code, str(self._page), "exec", ast.PyCF_ONLY_AST)
        if any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in tree.body):
            (self._directory / "test_page.py").write_text(code, encoding="utf-8")
            self._run_shell(f"{sys.executable} -m pytest -q -p no:cacheprovider test_page.py")
            return
        compiled = compile(tree, str(self._page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.chdir(self._directory):
            if compiled.co_flags & inspect.CO_COROUTINE:
                asyncio.run(self._awaited(compiled))
            else:
                exec(compiled, self._names)

    async def _awaited(self, compiled: CodeType) -> None:
        await eval(compiled, self._names)

    def _run_shell(self, code: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(
            command,
            cwd=self._directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{code}\nexited with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def _run_console(self, code: str) -> None:
        for command, expected in console_commands(code):
            printed = self._run_shell(command)
            assert shows(expected, printed), f"$ {command}\nprinted:\n{printed}\nthe page has:\n{expected}"

    def _serve(self, code: str) -> None:
        (command,) = code.strip().splitlines()
        server = subprocess.Popen(
            ["bash", "-c", "exec " + re.sub(r" --port \d+", "", command)],
            cwd=self._directory,
            env={**environment(), "SEAWALL_SERVER_LISTEN": "127.0.0.1:0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        port = SERVES.search(server.stdout.readline())
        assert port, f"{command}\ndoes not serve:\n{server.communicate(timeout=TIMEOUT_S)[1]}"
        self._servers.append(server)
        self._ports[port_of(command)] = int(port[1])


def ended(server: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a stopped server and its standard error; a server that does not stop is killed."""
    try:
        errors = server.communicate(timeout=TIMEOUT_S)[1]
    except subprocess.TimeoutExpired:
        server.kill()
        errors = server.communicate()[1]
    return server.returncode, errors


def port_of(command: str) -> int:
    """The port of a server as the page names it."""
    named = re.search(r"--port (\d+)", command)
    return int(named[1]) if named else PORT


def environment() -> Mapping[str, str]:
    """The environment of this process, with `seawall` and `python` of its interpreter first in the path."""
    own = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([own, os.environ.get("PATH", os.defpath)])}


def console_commands(code: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what it prints."""
    first, *parts = re.split(r"^\$ ", code, flags=re.MULTILINE)
    if first or not parts:
        raise ValueError("a console block begins with a command behind `$ `")
    for part in parts:
        command, _, expected = part.partition("\n")
        yield command, expected


def shows(expected: str, printed: str) -> bool:
    """True if a command printed what the page shows; `…` matches anything."""
    pattern = ".*".join(map(re.escape, expected.rstrip("\n").split("…")))
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


def run_page(page: Path, directory: Path, *, slow: bool) -> None:
    """Run the examples of a page in a directory, which should be empty."""
    with PageRunner(page, directory) as runner:
        runner.run(slow=slow)


def main(names: list[str]) -> None:
    """Run all examples of some pages, slow ones included, with Spark settings for little data."""
    with tempfile.TemporaryDirectory() as made:
        settings = Path(made, "spark")
        settings.mkdir()
        (settings / "spark-defaults.conf").write_text("\n".join(SPARK_SETTINGS), encoding="utf-8")
        os.environ["SPARK_CONF_DIR"] = str(settings)
        for number, name in enumerate(names):
            directory = Path(made, f"page-{number}")
            directory.mkdir()
            run_page(Path(name).resolve(), directory, slow=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Import rules: the direction of the layers, no cycles, access to the operating system, heavy modules stay unloaded.

The rules are read from the source with `ast`, so an import inside a function or under `TYPE_CHECKING` counts as well.
Each rule is also tested on a small tree that breaks it, to show that the check can fail.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "seawall"

#: A layer imports itself and the layers before it.
LAYERS = (
    *("limits", "errors", "config", "core", "kernels", "wire", "api", "io", "telemetry", "fabric", "sequencer"),
    *(
        "broker",
        "storage",
        "topics",
        "replication",
        "engine",
        "server",
        "client",
        "tasks",
        "spark",
        "console",
        "bench",
        "cli",
    ),
    "testing",
)

#: What runs in a user's process, or in Spark's, must not load a server.
FORBIDDEN_LAYERS = {
    **{layer: frozenset({"server", "engine", "topics"}) for layer in ("client", "spark")},
    # They get a log from the package, whichever kind it is.
    "tasks": frozenset({"server", "engine", "topics", "storage", "client"}),
}

#: `core` decides and never acts: same state and same input, same output.
IMPURE_MODULES = frozenset(
    (
        *("asyncio", "ctypes", "fcntl", "mmap", "multiprocessing", "os", "random", "resource", "secrets", "select"),
        *("selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid"),
    )
)

#: Layers above `io` reach the machine through its protocols, so that a simulator can replace it.
MACHINE_MODULES = frozenset({"os", "socket", "mmap", "time"})
MACHINE_LAYERS = frozenset({"io", "kernels", "bench", "cli", "testing"})

#: The package itself exports parts of the layers, and `python -m seawall` starts the command: both may import all.
ABOVE_ALL = frozenset({"__init__", "__main__"})

#: Too heavy for `import seawall`; each is loaded by its users on demand.
HEAVY_MODULES = ("numba", "numpy", "pyarrow", "pyspark", "uvloop", "rich", "http.server", "asyncio")


@dataclass(frozen=True)
class Import:
    """One imported module by its full name, and the line of the import."""

    module: str
    line: int


@dataclass(frozen=True)
class Source:
    """The imports of a file, and the lines of its `@kernel` decorators."""

    imports: tuple[Import, ...]
    kernel_decorators: tuple[int, ...]


def problems(package: Path) -> list[str]:
    """Everything in a tree of sources that breaks a rule, as `file:line: what`."""
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        layer = relative.parts[0].removesuffix(".py")
        if layer not in LAYERS and layer not in ABOVE_ALL:
            found.append(f"{relative}:1: {layer} is not a layer; add it to LAYERS")
            continue
        source = parsed(path, module_package(relative))
        for imported in source.imports:
            found.extend(f"{relative}:{imported.line}: {problem}" for problem in import_problems(layer, imported))
        if layer != "kernels":
            found.extend(f"{relative}:{line}: @kernel outside kernels/" for line in source.kernel_decorators)
    return found


@cache
def parsed(path: Path, package: str) -> Source:
    """What the checks need of a file; it is parsed once for all of them."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return Source(tuple(imports_of(tree, package)), tuple(kernel_decorators(tree)))


def import_problems(layer: str, imported: Import) -> Iterator[str]:
    """What is wrong with one import of a layer."""
    top, _, rest = imported.module.partition(".")
    if top == "seawall":
        target = rest.partition(".")[0]
        if target not in LAYERS:
            return  # a name of the package itself, such as its version
        if target == "testing" and layer != "testing":
            yield f"{layer} imports testing, which only tests may"
        elif layer in LAYERS and LAYERS.index(target) > LAYERS.index(layer):
            yield f"{layer} imports {target}, which comes after it"
        elif target in FORBIDDEN_LAYERS.get(layer, ()):
            yield f"{layer} imports {target}, which it must do without"
    elif layer == "core" and top in IMPURE_MODULES:
        yield f"core imports {top}; pass in what it gives"
    elif layer not in MACHINE_LAYERS and top in MACHINE_MODULES:
        yield f"{layer} imports {top}; ask io/ for it"


def imports_of(tree: ast.Module, package: str) -> Iterator[Import]:
    """Every import of a module, at any depth. `from a import b` is an import of `a.b`, since b may be a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = absolute_name(module or "", package, level)
                yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in names)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if called(function) in (
                "import_module",
                "__import__",
            ):
                yield Import(name, node.lineno)


def absolute_name(module: str, package: str, level: int) -> str:
    """The full name of what a `from` import names, given the package the importing module is in."""
    if level == 0:
        return module
    parents = package.split(".")
    return ".".join([*parents[: len(parents) - level + 1], *([module] if module else [])])


def module_package(relative: Path) -> str:
    """The package that the dots of a relative import in this file count from."""
    return ".".join(("seawall", *relative.parent.parts))


def kernel_decorators(tree: ast.Module) -> Iterator[int]:
    """Lines with a decorator `@kernel`, however it was imported and whether it is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                function = decorator.func if isinstance(decorator, ast.Call) else decorator
                if called(function) == "kernel":
                    yield decorator.lineno


def cycles(package: Path) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others; imports for types count."""
    paths = {module_name(path.relative_to(package)): path for path in package.rglob("*.py")}
    graph = {
        module: set(targets(path, module_package(path.relative_to(package)), paths)) for module, path in paths.items()
    }
    found: list[list[str]] = []
    remaining = set(graph)
    while remaining:
        module = min(remaining)
        group = reachable(graph, module) & reached_from(graph, module)
        if len(group) > 1:
            found.append(sorted(group))
        remaining -= group | {module}
    return found


def module_name(relative: Path) -> str:
    """The full name of the module in a file of the package."""
    return ".".join(("seawall", *relative.with_suffix("").parts)).removesuffix(".__init__")


def targets(path: Path, package: str, modules: Collection[str]) -> Iterator[str]:
    """The modules of the package that a file imports."""
    for imported in parsed(path, package).imports:
        name = imported.module
        if name not in modules:
            name = name.rpartition(".")[0]
        if name in modules:
            yield name


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Everything that a module imports, itself included if it is on a cycle or alone."""
    seen, open_ends = {start}, [start]
    while open_ends:
        for target in graph[open_ends.pop()] - seen:
            seen.add(target)
            open_ends.append(target)
    return seen


def reached_from(graph: Mapping[str, set[str]], end: str) -> set[str]:
    """Every module from which the imports lead to `end`."""
    backwards: dict[str, set[str]] = {module: set() for module in graph}
    for module, imported in graph.items():
        for target in imported:
            backwards[target].add(module)
    return reachable(backwards, end)


def called(function: ast.expr) -> str:
    """The last name of `name` or `some.thing.name`."""
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


#: Loaded when they are asked for, neither by an embedded log nor by a server.
OPTIONAL_MODULES = frozenset(
    (
        *("pyarrow", "pyspark", "pandas", "rich", "http.server"),
        *("seawall.bench", "seawall.client", "seawall.spark", "seawall.testing", "seawall.storage.verify"),
    )
)

#: Creates a log, writes to it and reads it.
USE_OF_A_LOG = """
import tempfile
import seawall

with tempfile.TemporaryDirectory() as path, seawall.open(path) as log:
    log.create_topic("events")
    log.publish("events", b"x")
    assert len(log.read("events")) == 1
"""


def loaded_by(*modules: str) -> set[str]:
    """Names of all modules that a fresh interpreter has after importing the given ones."""
    return loaded_after(f"import {', '.join(modules)}")


def loaded_after(script: str) -> set[str]:
    """Names of all modules that a fresh interpreter has after a script."""
    code = f"{script}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_layers_import_in_one_direction_only() -> None:
    assert problems(PACKAGE) == []


def test_there_are_no_import_cycles() -> None:
    assert cycles(PACKAGE) == []


def test_a_cycle_is_found(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").touch()
    (tmp_path / "core" / "a.py").write_text("from seawall.core.b import thing", encoding="utf-8")
    (tmp_path / "core" / "b.py").write_text("from . import c", encoding="utf-8")
    (tmp_path / "core" / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import seawall.core.a", encoding="utf-8"
    )
    (tmp_path / "core" / "d.py").write_text("import seawall.core.a", encoding="utf-8")
    assert cycles(tmp_path) == [["seawall.core.a", "seawall.core.b", "seawall.core.c"]]


def test_the_check_covers_every_layer() -> None:
    seen = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert {"limits", "errors", "core", "kernels", "wire", "io", "bench", "cli", "testing"} <= seen


def test_importing_the_package_is_light() -> None:
    assert loaded_by("seawall") & set(HEAVY_MODULES) == set()


def test_importing_core_configuration_and_command_line_is_light() -> None:
    core = [f"seawall.core.{path.stem}" for path in (PACKAGE / "core").glob("*.py") if path.stem != "__init__"]
    loaded = loaded_by("seawall.config", "seawall.cli.main", "seawall.cli.bench", *core)
    assert loaded & {"numba", "numpy", "pyarrow", "pyspark", "rich", "uvloop"} == set()
    assert set(core) <= loaded


def test_a_log_loads_only_what_it_uses() -> None:
    assert loaded_after(USE_OF_A_LOG) & (OPTIONAL_MODULES | {"seawall.server", "uvloop"}) == set()


def test_a_server_loads_only_what_it_uses() -> None:
    assert loaded_by("seawall.cli.serve", "seawall.server.node") & OPTIONAL_MODULES == set()


#: Trees that break a rule: file, source, and the expected complaint.
BROKEN = {
    "upwards": ("core/clock.py", "from seawall.io import files", "core imports io, which comes after it"),
    "upwards to a module": ("limits.py", "from seawall import errors", "limits imports errors, which comes after it"),
    "upwards by a plain import": ("wire/a.py", "import seawall.io.disk.files", "wire imports io, which comes after it"),
    "upwards in a function": (
        "io/a.py",
        "def f():\n    import seawall.cli.main",
        "io imports cli, which comes after it",
    ),
    "upwards for types only": (
        "io/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from seawall.engine import Log",
        "io imports engine, which comes after it",
    ),
    "upwards by dots": ("core/a.py", "from ..wire import frames", "core imports wire, which comes after it"),
    "upwards by dots alone": (
        "core/deep/a.py",
        "from ... import storage",
        "core imports storage, which comes after it",
    ),
    "upwards from a package": ("core/__init__.py", "from ..io.files import F", "core imports io, which comes after it"),
    "upwards by name": (
        "core/a.py",
        "import importlib\nimportlib.import_module('seawall.bench.suites.limits')",
        "core imports bench, which comes after it",
    ),
    "upwards by __import__": ("core/a.py", "__import__('seawall.cli')", "core imports cli, which comes after it"),
    "client to engine": ("client/a.py", "import seawall.engine", "client imports engine, which it must do without"),
    "client to topics": (
        "client/a.py",
        "from seawall import topics",
        "client imports topics, which it must do without",
    ),
    "spark to server": ("spark/a.py", "from seawall.server import x", "spark imports server, which it must do without"),
    "testing": ("cli/a.py", "from seawall.testing import SimDisk", "cli imports testing, which only tests may"),
    "testing from the top": ("__init__.py", "from seawall import testing", "imports testing, which only tests may"),
    "time in core": ("core/a.py", "from time import monotonic", "core imports time; pass in what it gives"),
    "randomness in core": ("core/a.py", "import random", "core imports random; pass in what it gives"),
    "a submodule in core": ("core/a.py", "import os.path", "core imports os; pass in what it gives"),
    "os above io": ("storage/a.py", "import os", "storage imports os; ask io/ for it"),
    "os in the configuration": ("config.py", "from os import environ", "config imports os; ask io/ for it"),
    "a socket in wire": ("wire/a.py", "def f():\n    import socket", "wire imports socket; ask io/ for it"),
    "a kernel elsewhere": ("wire/a.py", "@kernel(int64(int64))\ndef f(x): ...", "@kernel outside kernels/"),
    "a bare kernel elsewhere": ("io/a.py", "@jit.kernel\ndef f(x): ...", "@kernel outside kernels/"),
    "an unknown layer": ("attic/a.py", "", "attic is not a layer; add it to LAYERS"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found(tmp_path: Path, rule: str) -> None:
    name, source, complaint = BROKEN[rule]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    line = 1 + sum(1 for text in source.splitlines()[:-1] if not text.startswith("@"))
    [problem] = problems(tmp_path)
    assert problem.startswith(f"{name}:{line}: ")
    assert problem.endswith(complaint)


#: Trees that keep the rules.
SOUND = {
    "downwards": (
        "wire/a.py",
        "from seawall.core import clock\nimport seawall.limits\nfrom seawall.kernels.runtime.jit import k",
    ),
    "within": ("core/a.py", "from seawall.core.clock import Clock\nfrom . import b\nfrom .b import c"),
    "a name of the package": ("cli/a.py", "from seawall import __version__\nimport seawall"),
    "the machine in io": ("io/a.py", "import os, socket, mmap, time"),
    "the machine in testing": (
        "testing/a.py",
        "import os\nfrom seawall.cli import main\nfrom seawall.testing import disk",
    ),
    "randomness above core": ("sequencer/a.py", "import random"),
    "the command from the top": ("__main__.py", "from seawall.cli.main import main"),
    "a kernel at home": ("kernels/a.py", "@kernel(int64(int64))\ndef f(x): ...\n@kernel\ndef g(x): ..."),
    "other decorators": ("wire/a.py", "@cache\n@a.b(1)\n@x[0]\ndef f(x): ..."),
    "other calls": ("core/a.py", "import_module(name)\nload('seawall.cli')\n(lambda: 0)()"),
    "client to replication": ("client/a.py", "from seawall import replication"),
    "a namesake": ("wire/a.py", "import ossify, timeit\nfrom .. import limits"),
}


@pytest.mark.parametrize("rule", SOUND)
def test_allowed_imports_are_not_reported(tmp_path: Path, rule: str) -> None:
    name, source = SOUND[rule]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    assert problems(tmp_path) == []


def test_the_lightness_check_detects_loaded_modules() -> None:
    assert "numpy" in loaded_by("numpy")

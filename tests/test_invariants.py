"""Named invariants: one page lists them, one module states each, and a test names each.

The page is `docs/invariants.md`. A module states an invariant where a line of its docstring begins with `INV-NAME: `.
Other modules name it in code and comments only, so that there is one sentence to keep true.

Each check is a function from text to its findings, and is also tested on text that breaks it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "seawall"
PAGE = ROOT / "docs" / "invariants.md"
#: This file contains names that no module states, to show that the checks can fail.
THIS = Path(__file__).relative_to(ROOT).as_posix()

NAME = re.compile(r"\bINV-[A-Z0-9]+(?:-[A-Z0-9]+)*\b")
STATEMENT = re.compile(r"^(?:- )?(INV-[A-Z0-9]+(?:-[A-Z0-9]+)*): \S", re.MULTILINE)
ROW = re.compile(r"^\| (INV-[A-Z0-9-]+) \| (\S.*\.) \| \[[^]]+\]\(([^)#]+)(?:#([^)]+))?\) \| `([\w/]+\.py)` \|$")


# --- parsing ----------------------------------------------------------------------------------


def rows_of(page: str) -> list[tuple[str, str, str, str]]:
    """The rows of the page: name, page and heading that it protects, module."""
    lines = [line for line in page.split("\n") if line.startswith("| INV-")]
    found = [(line, ROW.match(line)) for line in lines]
    assert [line for line, match in found if match is None] == []
    return [(match[1], match[3], match[4] or "", match[5]) for _, match in found if match is not None]


def statements_of(source: str) -> list[str]:
    """The invariants that the docstring of a module states."""
    return STATEMENT.findall(ast.get_docstring(ast.parse(source)) or "")


def docstring_names(source: str) -> set[str]:
    """The invariants that docstrings of a module name, its own and those of its classes and functions."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return {name for node in nodes for name in NAME.findall(ast.get_docstring(node) or "")}


def anchors_of(page: str) -> set[str]:
    """The headings of a page as link targets."""
    headings = re.findall(r"^#+ (.+?)\s*$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def named_in(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """By file, the invariants that a text names; files without any are omitted."""
    found = {file: set(NAME.findall(text)) for file, text in texts.items()}
    return {file: names for file, names in found.items() if names}


# --- the tree keeps the rules -----------------------------------------------------------------------------------


def texts_below(folder: str, suffixes: tuple[str, ...] = (".py", ".md")) -> dict[str, str]:
    paths = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def table() -> dict[str, str]:
    """The module that states each invariant, according to the page."""
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert repeated(name for name, *_ in rows) == []
    return {name: module for name, _, _, module in rows}


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    """The modules of the product, by their path in it."""
    return {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def stated(modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for module, source in modules.items():
        for name in statements_of(source):
            yield name, module


def test_each_invariant_is_stated_once_by_the_module_that_the_page_names(
    table: Mapping[str, str], modules: Mapping[str, str]
) -> None:
    assert sorted(stated(modules)) == sorted(table.items())


def test_docstrings_of_other_modules_do_not_name_an_invariant(
    table: Mapping[str, str], modules: Mapping[str, str]
) -> None:
    named = ((module, name) for module, source in modules.items() for name in docstring_names(source))
    assert [(module, name) for module, name in named if table.get(name) != module] == []


def test_every_name_is_on_the_page(table: Mapping[str, str]) -> None:
    texts = {**texts_below("src"), **texts_below("tests"), **texts_below("docs"), **texts_below("examples")}
    texts |= {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")}
    del texts[THIS]
    unknown = {file: names - table.keys() for file, names in named_in(texts).items()}
    assert {file: names for file, names in unknown.items() if names} == {}


def test_a_test_names_every_invariant(table: Mapping[str, str]) -> None:
    texts = texts_below("tests", (".py",))
    del texts[THIS]
    assert table.keys() - set().union(*named_in(texts).values()) == set()


def test_every_invariant_links_to_an_existing_promise() -> None:
    for name, page, heading, _ in rows_of(PAGE.read_text(encoding="utf-8")):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert not heading or heading in anchors_of(text), name


# --- the checks can fail ----------------------------------------------------------------------------------------


def test_incomplete_rows_are_found() -> None:
    complete = "| INV-A-B | It holds. | [order](guarantees.md#order) | `core/a.py` |"
    assert rows_of(f"# Page\n\n{complete}\n") == [("INV-A-B", "guarantees.md", "order", "core/a.py")]
    for bad in (
        complete.replace("It holds.", "It holds"),
        complete.replace("[order](guarantees.md#order)", "order"),
        complete.replace("`core/a.py`", "`core/a.py`, `core/b.py`"),
        complete.replace("INV-A-B", "INV-A-B, INV-C"),
    ):
        with pytest.raises(AssertionError):
            rows_of(bad)


def test_statements_are_lines_of_the_module_docstring() -> None:
    source = '"""Title.\n\nINV-A: it holds.\n- INV-B-1: it holds.\nSee INV-C. INV-D: no.\n"""\n'
    source += 'class Inner:\n    """INV-E: no."""\n\n# INV-F: no.\ncheck(True, "INV-G")\n'
    assert statements_of(source) == ["INV-A", "INV-B-1"]
    assert docstring_names(source) == {"INV-A", "INV-B-1", "INV-C", "INV-D", "INV-E"}
    assert statements_of("x = 1\n") == []


def test_names_are_found_anywhere_in_a_text() -> None:
    texts = {"a.py": 'check(x, "INV-A-B")', "b.md": "(INV-C), INV-D-2.", "c.py": "INV-… or inv-a", "d.py": "INVALID-A"}
    assert named_in(texts) == {"a.py": {"INV-A-B"}, "b.md": {"INV-C", "INV-D-2"}}
    assert repeated(["INV-A", "INV-B", "INV-A"]) == ["INV-A"]


def test_headings_are_link_targets() -> None:
    page = "# Guarantees\n\n## Version 2 of the protocol\n\n### The pod's memory\n"
    assert anchors_of(page) == {"guarantees", "version-2-of-the-protocol", "the-pods-memory"}

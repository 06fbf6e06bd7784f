"""The house rules that a machine can check: docstrings, sizes, repetition, leftovers, line ends, locks, documents.

Sizes and silenced linters have a *ratchet*: a table of today's exceptions with their present number. An exception may
shrink (then its entry must shrink, too) and never grow. An entry that is no longer an exception must be removed.

Each check is a function from text to complaints, and is also tried on text that breaks it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import seawall

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "seawall").rglob("*.py"))

FOLDER_FILES_MAX = 20
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
SHARED_LINES_MAX = 10

#: Folders with more modules than allowed, by path.
CROWDED_FOLDERS: dict[str, int] = {}

#: Files longer than allowed, by path.
LONG_FILES: dict[str, int] = {"src/seawall/limits.py": 639}

#: Functions longer than allowed, by path and name.
LONG_FUNCTIONS: dict[str, int] = {}

#: Silenced linters and type checkers, by path.
SILENCED: dict[str, int] = {}


def hidden(text: str) -> str:
    """A text without its tildes, so that this file does not contain what it searches for."""
    return text.replace("~", "")


MARKERS = re.compile(hidden(r"\b(TO~DO|FIX~ME|XX~X|HA~CK)\b|\bbreak~point\("))
SILENCERS = re.compile(hidden(r"#\s*(type:\s*ig~nore|no~qa\b|pragma:\s*no\s*co~ver)"), re.IGNORECASE)
MACHINE_PATHS = re.compile(hidden(r"(?<![\w.-])(?:/wo~rk/|/ro~ot/|/tmp/ba~sh)"))

IMPORT_START = re.compile(r"(from \S+ )?import [\w(]")
WORD = re.compile(r"\w")

DECISION_NAME = re.compile(r"\d{4}-[a-z0-9]+(-[a-z0-9]+)*\.md")
DECISION_HEADINGS = ["Context", "Decision", "Rejected", "Consequences"]
NAMED_TEST = re.compile(r"\b(tests/[\w/.-]+\.py)((?:::\w+)*)")


class CodeLine(NamedTuple):
    """A line that counts when places are compared: its number and its text, with white space folded."""

    number: int
    text: str


@dataclass(frozen=True)
class Source:
    """What the checks need of a source file."""

    undocumented: list[str]
    function_lengths: dict[str, int]
    printing_lines: list[int]
    code_lines: list[CodeLine]


@cache
def parsed(path: Path) -> Source:
    """The facts about a file; it is parsed once for all checks."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    return Source(list(missing_docstrings(tree)), function_lengths(tree), printing_lines(tree), code_lines(text))


@cache
def defined_names(path: Path) -> set[tuple[str, ...]]:
    """The functions and classes of a file by their qualified names; the empty name is the file itself."""
    if not path.is_file():
        return set()
    names: set[tuple[str, ...]] = {()}

    def visit(body: list[ast.stmt], prefix: tuple[str, ...]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add((*prefix, node.name))
            if isinstance(node, ast.ClassDef):
                visit(node.body, (*prefix, node.name))

    visit(ast.parse(path.read_text(encoding="utf-8")).body, ())
    return names


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked_files() -> list[Path]:
    """Every existing file of the repository, committed or not ignored."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a repository: its files are unknown")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def tracked_texts() -> dict[str, str]:
    """The text files of the repository by path, with their original line ends."""
    texts: dict[str, str] = {}
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" not in content:
            texts[name_of(path)] = content.decode("utf-8")
    return texts


# --- checks: from text to complaints ----------------------------------------------------------------------------


def missing_docstrings(tree: ast.Module) -> Iterator[str]:
    """The module and every public class, function and method without a docstring."""
    if not ast.get_docstring(tree):
        yield "module"
    yield from _undocumented(tree, "")


def _undocumented(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            if not ast.get_docstring(child) and not _repeats_a_documented_one(child):
                yield f"{prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _undocumented(child, f"{prefix}{child.name}.")


def _repeats_a_documented_one(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Overloads, setters and overrides are explained where the thing is first defined."""
    names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in node.decorator_list}
    return bool(names & {"overload", "override", "setter", "deleter"})


def function_lengths(tree: ast.Module) -> dict[str, int]:
    """Lines from `def` to the end, by qualified name; the longest where a name is defined twice."""
    lengths: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, prefix)
                continue
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                lengths[name] = max(lengths.get(name, 0), (child.end_lineno or child.lineno) - child.lineno + 1)
            visit(child, f"{name}.")

    visit(tree, "")
    return lengths


def ratchet(found: Mapping[str, int], allowed: int, exceptions: Mapping[str, int]) -> list[str]:
    """What grew beyond its bound, and outdated entries of the table."""
    complaints: list[str] = []
    for name, size in sorted(found.items()):
        if size > exceptions.get(name, allowed):
            complaints.append(f"{name} has {size}, allowed are {exceptions.get(name, allowed)}")
    for name, size in sorted(exceptions.items()):
        now = found.get(name, 0)
        if now < size:
            complaints.append(f"{name} has {now}: {'drop' if now <= allowed else 'lower'} its entry of {size}")
    return complaints


def printing_lines(tree: ast.Module) -> list[int]:
    """Lines that call `print`."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]


def code_lines(text: str) -> list[CodeLine]:
    """The lines of a file without imports, blank lines, comments and lone punctuation. Those of docstrings count."""
    lines: list[CodeLine] = []
    is_import = False
    for number, line in enumerate(text.split("\n"), 1):
        folded = " ".join(line.split())
        if is_import or IMPORT_START.match(folded):
            is_import = not folded.endswith(")") if is_import else folded.endswith("(")
        elif not folded.startswith("#") and WORD.search(folded):
            lines.append(CodeLine(number, folded))
    return lines


def shared_runs(files: Mapping[str, list[CodeLine]]) -> list[str]:
    """Places that have the same run of more than `SHARED_LINES_MAX` lines, each with the first place that has it."""
    least = SHARED_LINES_MAX + 1
    first_places: dict[tuple[str, ...], tuple[str, int]] = {}
    complaints: list[str] = []
    for name, lines in files.items():
        texts = [line.text for line in lines]
        #: Where the run that was found last stands first: the next window only continues it.
        continued: tuple[str, int] | None = None
        for at in range(len(texts) - least + 1):
            other, start = first_places.setdefault(tuple(texts[at : at + least]), (name, at))
            if other == name and at - start < least:
                continued = None
                continue
            if continued != (other, start - 1):
                complaints.append(f"{name}:{lines[at].number} repeats {other}:{files[other][start].number}")
            continued = other, start
    return complaints


def layout_problems(text: str) -> list[str]:
    """Line ends, trailing blanks and the end of the file."""
    complaints: list[str] = []
    if "\r" in text:
        complaints.append("line ends are not LF")
    if any(line != line.rstrip(" \t") for line in text.split("\n")):
        complaints.append("trailing whitespace")
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        complaints.append("does not end with exactly one newline")
    return complaints


def lock_problems(text: str) -> list[str]:
    """A lock file pins every requirement by version and hash, and names no registry."""
    complaints = ["names an address"] if re.search(r"https?://", text) else []
    logical = re.sub(r"\\\n", " ", text)
    for line in filter(None, (re.sub(r"(^|\s)#.*", "", each).strip() for each in logical.split("\n"))):
        if line.startswith("-"):
            complaints.append(f"has an option: {line}")
        elif "==" not in line:
            complaints.append(f"is not pinned: {line.split()[0]}")
        elif not re.search(r"--hash=sha256:[0-9a-f]{64}\b", line):
            complaints.append(f"has no hash: {line.split()[0]}")
    return complaints


def decision_problems(name: str, text: str) -> list[str]:
    """Whether a decision record has its name and its parts."""
    complaints = [] if DECISION_NAME.fullmatch(name) else [f"{name} is not called NNNN-title.md"]
    headings = re.findall(r"^## (.+?)\s*$", text, re.MULTILINE)
    if headings != DECISION_HEADINGS:
        complaints.append(f"{name} has the parts {headings}, not {DECISION_HEADINGS}")
    return complaints


def absent_tests(text: str, root: Path) -> list[str]:
    """Tests that a document names and the tree does not have."""
    named = [(match[0], root / match[1], tuple(match[2].split("::")[1:])) for match in NAMED_TEST.finditer(text)]
    return [test for test, path, names in named if names not in defined_names(path)]


def matches(pattern: re.Pattern[str], texts: Mapping[str, str]) -> list[str]:
    """Where a pattern occurs, as `file:line: text`."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.split("\n"), 1)
        if pattern.search(line)
    ]


def changelog_names(version: str, text: str) -> bool:
    """Whether a changelog has a heading for a version."""
    return re.search(rf"^#+ .*(?<![\w.]){re.escape(version)}(?![\w.])", text, re.MULTILINE) is not None


# --- the tree keeps the rules -----------------------------------------------------------------------------------


def test_everything_public_is_documented() -> None:
    missing = {name_of(path): parsed(path).undocumented for path in SOURCES}
    assert {name: undocumented for name, undocumented in missing.items() if undocumented} == {}


def test_no_file_is_too_long() -> None:
    sizes = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in SOURCES}
    assert ratchet(sizes, FILE_LINES_MAX, LONG_FILES) == []


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(name_of(path.parent) for path in SOURCES if path.name != "__init__.py")
    assert ratchet(counts, FOLDER_FILES_MAX, CROWDED_FOLDERS) == []


def test_no_function_is_too_long() -> None:
    sizes = {
        f"{name_of(path)}::{name}": length for path in SOURCES for name, length in parsed(path).function_lengths.items()
    }
    assert ratchet(sizes, FUNCTION_LINES_MAX, LONG_FUNCTIONS) == []


def test_no_two_places_share_many_lines() -> None:
    assert shared_runs({name_of(path): parsed(path).code_lines for path in SOURCES}) == []


def test_no_linter_is_silenced() -> None:
    counts = {
        name: len(SILENCERS.findall(text))
        for name, text in tracked_texts().items()
        if name.endswith(".py")  # what a linter reads
    }
    assert ratchet(counts, 0, SILENCED) == []


def test_no_leftover_markers() -> None:
    assert matches(MARKERS, tracked_texts()) == []


def test_only_the_command_line_prints() -> None:
    printing = {name_of(path): parsed(path).printing_lines for path in SOURCES}
    assert {name for name, lines in printing.items() if lines and not name.startswith("src/seawall/cli/")} == set()


def test_text_files_have_a_uniform_layout() -> None:
    found = {name: layout_problems(text) for name, text in tracked_texts().items()}
    assert {name: complaints for name, complaints in found.items() if complaints} == {}


def test_no_text_contains_a_path_of_one_machine() -> None:
    assert matches(MACHINE_PATHS, tracked_texts()) == []


def test_lock_files_pin_by_hash() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    found = {name_of(path): lock_problems(path.read_text(encoding="utf-8")) for path in locks}
    assert {name: complaints for name, complaints in found.items() if complaints} == {}


def test_the_changelog_names_the_version() -> None:
    assert changelog_names(seawall.__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def test_decision_records_have_their_parts() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [problem for path in records for problem in decision_problems(path.name, path.read_text("utf-8"))] == []
    numbers = [path.name[:4] for path in records]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("name", ["docs/guarantees.md", "Makefile"])
def test_named_tests_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert NAMED_TEST.search(text)
    assert absent_tests(text, ROOT) == []


# --- the checks can fail ----------------------------------------------------------------------------------------


def test_missing_docstrings_are_found() -> None:
    source = '''
class Public:
    def method(self): ...
    async def other(self): """Documented."""
    def _private(self): ...
    @property
    def value(self): ...
    @value.setter
    def value(self, to): ...
class _Private:
    def method(self): ...
def function():
    def inner(): ...
@overload
def variant(x): ...
'''
    found = list(missing_docstrings(ast.parse(source)))
    assert found == ["module", "Public", "Public.method", "Public.value", "function"]
    assert list(missing_docstrings(ast.parse('"""What it does."""\ndef f():\n    """What."""'))) == []


def test_lengths_of_functions_are_counted_from_def_to_end() -> None:
    source = "@decorated\ndef f():\n    a = 1\n\n    return a\n"
    source += "class C:\n    def m(self):\n        def inner(): ...\n        pass\n"
    assert function_lengths(ast.parse(source)) == {"f": 4, "C.m": 3, "C.m.inner": 1}
    twice = "if a:\n    def f(): ...\nelse:\n    def f():\n        pass\n"
    assert function_lengths(ast.parse(twice)) == {"f": 2}


def test_only_code_is_compared() -> None:
    source = '"""What\n\nit does."""\nfrom a import (\n    b,\n)\nimport c\nx = (  # kept\n    1,\n)\n    # left  out\n'
    assert code_lines(source) == [
        (1, '"""What'),
        (3, 'it does."""'),
        (8, "x = ( # kept"),
        (9, "1,"),
    ]


def statements(count: int, first: int = 0) -> str:
    return "".join(f"x = {number}\n" for number in range(first, first + count))


def test_long_runs_that_stand_twice_are_found() -> None:
    run, nested = statements(11), "def f():\n" + statements(11).replace("x", "\n    # why\n    x ")
    assert shared_runs({"a.py": code_lines(run), "b.py": code_lines(nested)}) == ["b.py:4 repeats a.py:1"]
    assert shared_runs({"a.py": code_lines(f"{run}y = 0\n{run}")}) == ["a.py:13 repeats a.py:1"]
    longer, third = statements(14, first=-1), statements(12, first=-1)
    found = shared_runs({"a.py": code_lines(run), "b.py": code_lines(longer), "c.py": code_lines(third)})
    assert found == ["b.py:2 repeats a.py:1", "c.py:1 repeats b.py:1", "c.py:2 repeats a.py:1"]


def test_short_runs_may_stand_twice() -> None:
    ten = statements(10)
    assert shared_runs({"a.py": code_lines(f"{ten}y = 1\n"), "b.py": code_lines(f"{ten}y = 2\n")}) == []
    assert shared_runs({"a.py": code_lines("x = 1\n" * 20)}) == []
    imports = "from a import (\n" + "".join(f"    name_{number},\n" for number in range(20)) + ")\n"
    assert shared_runs({"a.py": code_lines(imports), "b.py": code_lines(imports)}) == []


@pytest.mark.parametrize(
    ("found", "exceptions", "complaints"),
    [
        ({"a": 10}, {}, []),
        ({"a": 11}, {}, ["a has 11, allowed are 10"]),
        ({"a": 20}, {"a": 20}, []),
        ({"a": 21}, {"a": 20}, ["a has 21, allowed are 20"]),
        ({"a": 19}, {"a": 20}, ["a has 19: lower its entry of 20"]),
        ({"a": 10}, {"a": 20}, ["a has 10: drop its entry of 20"]),
        ({}, {"gone": 20}, ["gone has 0: drop its entry of 20"]),
    ],
)
def test_the_ratchet_only_tightens(found: dict[str, int], exceptions: dict[str, int], complaints: list[str]) -> None:
    assert ratchet(found, 10, exceptions) == complaints


@pytest.mark.parametrize(
    "marked", ["# TO~DO later", "x = 1  # FIX~ME", "# XX~X", "# a HA~CK", "    break~point()", '"""TO~DO: more."""']
)
def test_leftovers_are_found(marked: str) -> None:
    line = hidden(marked)
    assert matches(MARKERS, {"a.py": f"first\n{line}\n"}) == [f"a.py:2: {line.strip()}"]


@pytest.mark.parametrize("line", ["x = 0xXXX1", "hacking", "todo_list = []", "METHODOLOGY", "at_breakpoint"])
def test_similar_words_are_not_leftovers(line: str) -> None:
    assert matches(MARKERS, {"a.py": line}) == []


def test_silencers_are_found() -> None:
    for line in (
        *("x = 1  # type: ig~nore", "x  # type:ig~nore[attr]", "x  # no~qa: E501", "x  # NO~QA", "x  #no~qa"),
        "x  # pragma: no co~ver",
    ):
        assert SILENCERS.search(hidden(line))
    assert not SILENCERS.search("# types: ignored by the reader")


def test_printing_is_found() -> None:
    assert printing_lines(ast.parse('"""print(1)"""\npprint(2)\nx.print(3)\nif x:\n    print(4)\n')) == [5]


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("", []),
        ("a\n\nb\n", []),
        ("a\r\nb\r\n", ["line ends are not LF"]),
        ("a \nb\n", ["trailing whitespace"]),
        ("a\n\t\nb\n", ["trailing whitespace"]),
        ("a", ["does not end with exactly one newline"]),
        ("a\n\n", ["does not end with exactly one newline"]),
    ],
)
def test_irregular_layout_is_found(text: str, complaints: list[str]) -> None:
    assert layout_problems(text) == complaints


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cd /wo~rk/main", True),
        ("(/ro~ot/.cache)", True),
        ("/tmp/ba~sh_jobs/x", True),
        ("net/wo~rk/", False),
        ("/wo~rkers/", False),
        ("docs/ro~ot/", False),
    ],
)
def test_machine_paths_are_found(line: str, found: bool) -> None:
    assert bool(matches(MACHINE_PATHS, {"a": hidden(line)})) is found


HASH = "0" * 64


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        (f"# by a tool\nclick==8.1 \\\n    --hash=sha256:{HASH} \\\n    --hash=sha256:{HASH}\n    # via seawall\n", []),
        (f"numpy==2.0 ; python_version < '3.13' --hash=sha256:{HASH}\n", []),
        ("click==8.1\n", ["has no hash: click==8.1"]),
        ("click==8.1 \\\n    --hash=sha256:00\n", ["has no hash: click==8.1"]),
        (f"click>=8.1 --hash=sha256:{HASH}\n", ["is not pinned: click>=8.1"]),
        (f"--index-url x\nclick==8.1 --hash=sha256:{HASH}\n", ["has an option: --index-url x"]),
        ("# from http://somewhere\n", ["names an address"]),
        (f"click @ https://x/y.whl --hash=sha256:{HASH}\n", ["names an address", "is not pinned: click"]),
    ],
)
def test_unpinned_lock_files_are_found(text: str, complaints: list[str]) -> None:
    assert lock_problems(text) == complaints


GOOD_RECORD = "# One writer\n\n## Context\n\n## Decision\n\n### A detail\n\n## Rejected\n\n## Consequences\n"


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("0001-one-writer.md", GOOD_RECORD, 0),
        ("1-one-writer.md", GOOD_RECORD, 1),
        ("0001_one_writer.md", GOOD_RECORD, 1),
        ("0001-One.md", GOOD_RECORD, 1),
        ("0001-one.md", GOOD_RECORD.replace("## Rejected\n", ""), 1),
        ("0001-one.md", GOOD_RECORD.replace("## Decision", "## Choice"), 1),
        ("notes.md", "", 2),
    ],
)
def test_unfinished_decision_records_are_found(name: str, text: str, count: int) -> None:
    assert len(decision_problems(name, text)) == count


def test_promises_without_a_test_are_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    source = "def test_a(): ...\nclass TestB:\n    def test_c(self): ...\n"
    (tmp_path / "tests" / "test_x.py").write_text(source, encoding="utf-8")
    present = "`tests/test_x.py`, `tests/test_x.py::test_a`, `tests/test_x.py::TestB::test_c`"
    assert absent_tests(present, tmp_path) == []
    gone = ["tests/test_x.py::test_c", "tests/test_x.py::TestB::test_a", "tests/test_y.py", "tests/test_y.py::test_a"]
    assert absent_tests(" and ".join(gone), tmp_path) == gone


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("# Changes\n\n## 0.1.0\n", True),
        ("## [0.1.0] (unreleased)\n", True),
        ("## 0.1.0.1\n## 10.1.0\n", False),
        ("in 0.1.0\n", False),
    ],
)
def test_a_version_needs_its_heading(text: str, named: bool) -> None:
    assert changelog_names("0.1.0", text) is named

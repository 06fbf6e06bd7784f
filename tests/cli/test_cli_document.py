"""Help and documentation agree: every command has an example in its help and a section in `docs/cli.md`."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from seawall.cli import main as shell

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def paths() -> Iterator[tuple[str, ...]]:
    """Every command and subcommand."""
    for lazy in shell.COMMANDS:
        yield (str(lazy.name),)
        command = lazy.loaded()
        if isinstance(command, click.Group):
            yield from ((str(lazy.name), name) for name in command.commands)


PATHS = sorted(paths())


@pytest.mark.parametrize("path", [(), *PATHS], ids=" ".join)
def test_every_help_has_an_example_that_can_be_parsed(path: tuple[str, ...]) -> None:
    text = CliRunner().invoke(shell.seawall, [*path, "--help"]).output
    examples = re.search(r"^  Examples?:\n((?:    .+\n)+)", text, re.MULTILINE)
    assert examples, text
    for line in examples[1].splitlines():
        check_example(line.strip())


def test_every_command_has_a_section() -> None:
    assert sorted(re.findall(r"^## seawall (\w+)$", DOCUMENT, re.MULTILINE)) == sorted(
        str(command.name) for command in shell.COMMANDS
    )


def test_every_section_shows_the_help_of_its_command() -> None:
    """`docs/generated.py` inserts it into the site."""
    sections = re.split(r"^## seawall (\w+)$", DOCUMENT, flags=re.MULTILINE)[1:]
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        assert f"\n<!-- generated: help {name} -->\n" in text


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_has_an_example_in_the_document(path: tuple[str, ...]) -> None:
    assert re.search(rf"^    (?:.*\| )?seawall (?:--\S+ \S+ )*{' '.join(path)}\b", DOCUMENT, re.MULTILINE)


def test_examples_of_the_document_can_be_parsed() -> None:
    lines = re.findall(r"^    (.*\bseawall .*)$", DOCUMENT, re.MULTILINE)
    examples = [line for line in lines if "COMMAND" not in line]
    assert len(examples) > 20
    for line in examples:
        check_example(line)


def check_example(line: str) -> None:
    """Check that the command of an example has all its options."""
    for part in re.split(r"\||&&", line):
        words = shlex.split(part.partition(">")[0])
        if not words or words[0] != "seawall":
            continue
        command: click.Command = shell.seawall
        for word in words[1:]:
            if word.startswith("-"):
                known = {name for parameter in command.params for name in parameter.opts}
                assert word in known, line
            elif isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]
                command = command.loaded() if isinstance(command, shell.LazyCommand) else command


def test_an_example_with_an_unknown_option_is_found() -> None:
    check_example("tail x | seawall pub a --create")
    with pytest.raises(AssertionError):
        check_example("tail x | seawall pub a --creat")


def test_documented_exit_codes_are_those_of_the_command_line() -> None:
    for code in (0, shell.EXIT_FAILED, shell.EXIT_CALLER, shell.EXIT_INTERRUPTED):
        assert re.search(rf"\b{code} ", re.search(r"\*\*Exit codes:\*\*(.*)", DOCUMENT)[1])

"""What pages show and the product knows: the help of every command, every setting, every error.

A page says where: `<!-- generated: help topic -->`, `<!-- generated: settings -->`. The comment is replaced when the
site is built, so nothing generated is stored.
"""

import re
from collections.abc import Callable, Iterator

import click
from click.testing import CliRunner

from seawall import errors
from seawall.cli.main import COMMANDS, seawall
from seawall.cli.serve import serve
from seawall.config import SETTINGS, Config, Setting

MARK = re.compile(r"^<!-- generated: (\w+)(?: (\w+))? -->$", re.MULTILINE)

#: Columns of a help text: what fits a page.
HELP_WIDTH = 100


def filled(page: str) -> str:
    """A page with everything generated in it; `KeyError` names what nothing generates."""
    return MARK.sub(lambda mark: _MAKERS[mark[1]](mark[2]), page)


# --- commands ----------------------------------------------------------------------------------------------------


def help_of(name: str) -> str:
    """The help of a command and of each one below it, as blocks."""
    lazy = next(command for command in COMMANDS if command.name == name)
    command = lazy.loaded()
    below = command.commands if isinstance(command, click.Group) else ()
    return "\n\n".join(_help([name, *path]) for path in ([], *([each] for each in below)))


def _help(path: list[str]) -> str:
    shown = CliRunner().invoke(seawall, [*path, "--help"], prog_name="seawall", terminal_width=HELP_WIDTH)
    return f"```text\n{shown.output.rstrip()}\n```"


# --- settings ----------------------------------------------------------------------------------------------------


def settings(_argument: str | None = None) -> str:
    """Every setting by its section: what it means, allows and is by default, and how it is given."""
    sections: dict[str, list[Setting]] = {}
    for setting in SETTINGS.values():
        sections.setdefault(setting.key.partition(".")[0], []).append(setting)
    return "\n".join(line for name, declared in sections.items() for line in _section(name, declared))


def _section(name: str, declared: list[Setting]) -> Iterator[str]:
    about = type(getattr(Config(), name)).__doc__ or ""
    yield from (f"## {name}", "", about.splitlines()[0], "")
    for setting in declared:
        yield from _setting(setting)


def _setting(setting: Setting) -> Iterator[str]:
    flags = [f"`--set {setting.key}=VALUE`", *_serve_options(setting)]
    yield from (f"### `{setting.key}`", "", f"{setting.help[0].upper()}{setting.help[1:]}.", "")
    yield f"- Type: {type_of(setting)}; {setting.rule.allowed}"
    yield f"- Default: `{default_of(setting)}`"
    yield f"- Environment variable: `{setting.variable}`"
    yield f"- Flag: {', '.join(flags)}"
    yield ""


def type_of(setting: Setting) -> str:
    """What a program gets: the type of the default."""
    return next(name for kind, name in _TYPES.items() if isinstance(setting.default, kind))


def default_of(setting: Setting) -> str:
    """The default as it would be written in the file."""
    value = setting.default
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _serve_options(setting: Setting) -> list[str]:
    """The option of `seawall serve` that sets it, if there is one."""
    section, _, name = setting.key.partition(".")
    options = [option for each in serve.params if each.name == name for option in each.opts]
    return [f"`seawall serve {option}`" for option in options] if section == "server" else []


# --- errors ------------------------------------------------------------------------------------------------------


def error_classes(_argument: str | None = None) -> str:
    """Every class of `seawall.errors`, documented by its docstring."""
    lines = [f".. autoexception:: seawall.errors.{name}" for name in errors.__all__]
    return "\n".join(["```{eval-rst}", *lines, "```"])


#: A truth value is an integer, too: so it is first.
_TYPES: dict[type, str] = {bool: "boolean", int: "integer", float: "seconds", str: "text"}

_MAKERS: dict[str, Callable[[str], str]] = {"help": help_of, "settings": settings, "errors": error_classes}

"""`seawall config`: print every setting, its current value, and the origin of that value."""

from __future__ import annotations

import json

import click

from seawall.config import SETTINGS, LoadedConfig, Setting, Value


@click.group()
def config() -> None:
    """Show the settings and the origins of their values.

    \b
    Example:
      seawall config show --describe
    """


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--describe", is_flag=True, help="Add the meaning, the allowed values and the default of each setting.")
@click.pass_obj
def show(loaded: LoadedConfig, as_json: bool, describe: bool) -> None:
    """Print every setting with its value and its origin: default, file, environment or flag.

    \b
    Example:
      seawall --set bench.rounds=9 config show --json
    """
    click.echo(_as_json(loaded, describe) if as_json else _as_text(loaded, describe))


def _as_json(loaded: LoadedConfig, describe: bool) -> str:
    rows = {}
    for key, setting in SETTINGS.items():
        row: dict[str, Value] = {"value": loaded.config.value(key), "origin": loaded.origins[key]}
        if describe:
            row |= _description(setting)
        rows[key] = row
    return json.dumps(rows, indent=2, ensure_ascii=False)


def _as_text(loaded: LoadedConfig, describe: bool) -> str:
    values = {key: _value_text(loaded.config.value(key)) for key in SETTINGS}
    key_width = max(map(len, values))
    value_width = max(map(len, values.values()))
    lines = []
    for key, setting in SETTINGS.items():
        lines.append(f"{key:{key_width}}  {values[key]:{value_width}}  {loaded.origins[key]}")
        if describe:
            about = _description(setting)
            default = _value_text(about["default"])
            lines += [
                f"    {about['help']}",
                f"    {about['allowed']}; default {default}; environment {about['variable']}",
                "",
            ]
    return "\n".join(lines).rstrip("\n")


def _description(setting: Setting) -> dict[str, Value]:
    return {
        "help": setting.help,
        "allowed": setting.rule.allowed,
        "default": setting.default,
        "variable": setting.variable,
    }


def _value_text(value: Value) -> str:
    """The value as it is written in the file, but text without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or '""'

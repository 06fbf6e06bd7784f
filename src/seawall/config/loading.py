"""Load the whole configuration from its sources: file, environment and flags.

Precedence, lowest first:

    default  <  file (TOML)  <  environment SEAWALL_<SECTION>_<FIELD>  <  flag --set section.field=value

Every source refuses undeclared settings, and the error suggests the closest existing name. Every value is validated,
even if a later source overrides it.

This module reads only the file that the caller or SEAWALL_CONFIG names. It uses no global state: the environment is
passed in, and the current directory is not searched for files.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType

from seawall.config.rules import Rule, Section, Value, shown
from seawall.config.sections import (
    BenchConfig,
    DiskConfig,
    FabricConfig,
    KernelsConfig,
    StorageConfig,
    TopologyConfig,
)
from seawall.config.server import ServerConfig
from seawall.errors import ConfigError

ENVIRONMENT_PREFIX = "SEAWALL_"
#: Variables that are not settings: the path of the file itself, and the token that a client presents to a server.
FILE_VARIABLE = "SEAWALL_CONFIG"
TOKEN_VARIABLE = "SEAWALL_TOKEN"


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of Seawall."""

    kernels: KernelsConfig = field(default_factory=KernelsConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    fabric: FabricConfig = field(default_factory=FabricConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)

    def value(self, key: str) -> Value:
        """The value of one setting, by its key `section.field`."""
        section, name = key.split(".")
        found: Value = getattr(getattr(self, section), name)
        return found


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting."""

    key: str
    default: Value
    rule: Rule
    help: str

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return ENVIRONMENT_PREFIX + self.key.replace(".", "_").upper()


def _declared() -> Iterator[Setting]:
    default = Config()
    for section in fields(Config):
        group: Section = getattr(default, section.name)
        for item in fields(group):
            key = f"{section.name}.{item.name}"
            yield Setting(key, default.value(key), item.metadata["rule"], item.metadata["help"])


#: Every setting by its key, in the order of declaration.
SETTINGS: Mapping[str, Setting] = MappingProxyType({declared.key: declared for declared in _declared()})


# --- loading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and the origin of each key's value."""

    config: Config
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    """One raw value from a source."""

    key: str
    raw: object
    origin: str
    line: int | None = None

    @property
    def location(self) -> str:
        return self.origin if self.line is None else f"{self.origin}, line {self.line}"


def load(
    path: str | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    flags: Mapping[str, object] = MappingProxyType({}),
) -> LoadedConfig:
    """Load the file (`path`, or else the one that SEAWALL_CONFIG names), the environment and the flags."""
    path = path or environ.get(FILE_VARIABLE)
    values = {key: declared.default for key, declared in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    for source in (_from_file(path) if path else (), _from_environment(environ), _from_flags(flags)):
        for given in source:
            rule = SETTINGS[given.key].rule
            value = rule.read(given.raw)
            if value is None:
                raise ConfigError(f"{given.key} is {shown(given.raw)} ({given.location}): it must be {rule.allowed}")
            values[given.key] = value
            origins[given.key] = given.origin
    return LoadedConfig(_assemble(values), MappingProxyType(origins))


def _assemble(values: Mapping[str, Value]) -> Config:
    default = Config()
    sections = {}
    for section in fields(Config):
        kind = type(getattr(default, section.name))
        sections[section.name] = kind(**{item.name: values[f"{section.name}.{item.name}"] for item in fields(kind)})
    return Config(**sections)


def _from_file(path: str) -> Iterator[_Given]:
    origin = f"file {path}"
    try:
        text = Path(path).read_bytes().decode()
        document = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ValueError as error:  # neither UTF-8 nor TOML
        raise ConfigError(f"the configuration file {path} is not valid TOML: {error}") from error
    sections = [section.name for section in fields(Config)]
    for section, table in document.items():
        whole = _Given(section, table, origin, _line(text, section))
        if section not in sections:
            raise _unknown(f"section {section}", section, sections, whole)
        if not isinstance(table, dict):
            raise ConfigError(f"{section} is {shown(table)} ({whole.location}): it must be a table of settings")
        for name, raw in table.items():
            given = _Given(f"{section}.{name}", raw, origin, _line(text, section, name))
            if given.key not in SETTINGS:
                raise _unknown(f"setting {given.key}", given.key, SETTINGS, given)
            yield given


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    keys = {declared.variable: key for key, declared in SETTINGS.items()}
    for variable, raw in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in (FILE_VARIABLE, TOKEN_VARIABLE):
            continue
        given = _Given(keys.get(variable, ""), raw, f"environment {variable}")
        if not given.key:
            raise _unknown(f"setting {variable}", variable, [*keys, FILE_VARIABLE, TOKEN_VARIABLE], given)
        yield given


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for key, raw in flags.items():
        given = _Given(key, raw, "flag --set")
        if key not in SETTINGS:
            raise _unknown(f"setting {key}", key, SETTINGS, given)
        yield given


def _unknown(what: str, name: str, known: Iterable[str], given: _Given) -> ConfigError:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "`seawall config show` lists every setting"
    return ConfigError(f"unknown {what} ({given.location}): {hint}")


# --- helpers -----------------------------------------------------------------------------------------------------


def _line(text: str, section: str, name: str = "") -> int | None:
    """The line that most likely sets the key, for messages only; None if an unusual notation hides it."""
    wanted = f"{section}.{name}".rstrip(".")
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = re.match(r"\s*(\[?)\s*([\w.-]+)\s*[]=]", line)
        if words is None:
            continue
        written = words[2] if words[1] else f"{current}.{words[2]}".lstrip(".")
        if words[1]:
            current = written
        if written == wanted:
            return number
    return None

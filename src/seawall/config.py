"""The configuration: one frozen, typed object, each setting declared and explained once.

Where a value comes from, later ones win:

    default  <  file (TOML)  <  environment SEAWALL_<SECTION>_<FIELD>  <  flag --set section.field=value

    [disk]                          SEAWALL_DISK_BACKEND=uring          --set disk.backend=uring
    backend = "uring"

Rules
- What is not declared here is refused in every source, with the nearest name that exists: a setting that is silently
  ignored is worse than none. Every value is checked where it is given, also one that a later source replaces.
- One rule reads a setting whatever its source. An environment variable can only be text, so text is welcome
  everywhere: sizes as "64MiB", durations as "250ms", numbers and switches too.
- A section checks itself when it is made, so a `Config` never holds a value that its rules refuse.

This module reads one file, the one it is told to. It knows no global state: the environment is passed in, and no file
is looked for in the current directory.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from seawall import limits
from seawall.errors import ConfigError

Value: TypeAlias = bool | int | float | str

ENVIRONMENT_PREFIX = "SEAWALL_"
#: Names the file itself, so it is no setting; nor is what a client shows to a server.
FILE_VARIABLE = "SEAWALL_CONFIG"
TOKEN_VARIABLE = "SEAWALL_TOKEN"

# --- rules: which values a setting takes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """Which values a setting takes: in words that follow "must be", and as a function that gives None for any other."""

    allowed: str
    read: Callable[[object], Value | None]


def switch() -> Rule:
    """True or false."""

    def read(raw: object) -> bool | None:
        if isinstance(raw, str):
            return {"true": True, "on": True, "false": False, "off": False}.get(raw.strip().lower())
        return raw if isinstance(raw, bool) else None

    return Rule("true or false", read)


def integer(low: int, high: int, *, power_of_two: bool = False) -> Rule:
    """A whole number in a range."""

    def read(raw: object) -> int | None:
        number = _number(raw, _WHOLE_NUMBER, {"": 1})
        if not isinstance(number, int) or not low <= number <= high:
            return None
        return None if power_of_two and number & (number - 1) else number

    return Rule(f"{'a power of two' if power_of_two else 'a whole number'} from {low} to {high}", read)


def size(low: int, high: int) -> Rule:
    """Bytes in a range."""
    units = {"": 1, "B": 1, "KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}

    def read(raw: object) -> int | None:
        number = _number(raw, _WHOLE_NUMBER, units)
        return number if isinstance(number, int) and low <= number <= high else None

    return Rule(f"a size from {low} to {high} bytes, such as 65536, 64KiB or 2GiB", read)


def duration(low: float, high: float) -> Rule:
    """Seconds in a range."""
    units: dict[str, int | Decimal] = {"": 1, "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": 1, "m": 60, "h": 3600}

    def read(raw: object) -> float | None:
        seconds = _number(raw, _DECIMAL_NUMBER, units)
        return float(seconds) if seconds is not None and low <= seconds <= high else None

    return Rule(f"a time from {low:g} to {high:g} seconds, such as 2, 0.5 or 250ms", read)


def path_text(*, may_be_empty: bool = False) -> Rule:
    """A path; a relative one counts from the directory of the process."""

    def read(raw: object) -> str | None:
        return raw if isinstance(raw, str) and "\0" not in raw and (raw or may_be_empty) else None

    return Rule("a path or empty" if may_be_empty else "a path", read)


def choice(words: type[StrEnum]) -> Rule:
    """One of a few words."""

    def read(raw: object) -> StrEnum | None:
        return words(raw) if isinstance(raw, str) and raw in set(words) else None

    return Rule("one of " + ", ".join(words), read)


#: Longer text is no number: it is refused before anything is computed from it.
_NUMBER_TEXT_SIZE_MAX = 40
_WHOLE_NUMBER = re.compile(r"\s*(-?[0-9]+(?:_[0-9]+)*)\s*([A-Za-z]*)\s*")
_DECIMAL_NUMBER = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def _number(raw: object, pattern: re.Pattern[str], units: Mapping[str, int | Decimal]) -> int | float | None:
    """The number, or what a text of number and unit stands for; None if it is neither. Not-a-number fails any range."""
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return raw
    match = pattern.fullmatch(raw) if isinstance(raw, str) and len(raw) <= _NUMBER_TEXT_SIZE_MAX else None
    if match is None or match[2] not in units:
        return None
    # Decimals, so that 100us is the same number as 0.0001.
    number = Decimal(match[1]) * units[match[2]]
    return int(number) if pattern is _WHOLE_NUMBER else float(number)


# --- the settings ------------------------------------------------------------------------------------------------


def _about(rule: Rule, text: str) -> Mapping[str, object]:
    """What is declared about a setting beside its default: its rule, and the one text that explains it."""
    return {"rule": rule, "help": text}


@dataclass(frozen=True, slots=True)
class Section:
    """A group of settings that checks itself when it is made."""

    def __post_init__(self) -> None:
        for declared in fields(self):
            raw: object = getattr(self, declared.name)
            rule: Rule = declared.metadata["rule"]
            value = rule.read(raw)
            if value is None:
                raise ConfigError(f"{type(self).__name__}.{declared.name} is {_shown(raw)}: it must be {rule.allowed}")
            object.__setattr__(self, declared.name, value)


class DiskBackend(StrEnum):
    """Who carries out disk operations."""

    AUTO = "auto"
    RESIDENT = "resident"
    URING = "uring"


class Toggle(StrEnum):
    """On, off, or whatever the machine does best."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class KernelsConfig(Section):
    """Machine code."""

    cache_dir: str = field(
        default="",
        metadata=_about(
            path_text(may_be_empty=True),
            "folder that keeps compiled kernels; if empty, the first writable one of the usual places",
        ),
    )


@dataclass(frozen=True, slots=True)
class DiskConfig(Section):
    """How bytes reach the disk."""

    backend: DiskBackend = field(
        default=DiskBackend.AUTO,
        metadata=_about(
            choice(DiskBackend),
            "who carries out disk operations: threads of compiled code (resident), io_uring (uring), the better (auto)",
        ),
    )
    ring_entries: int = field(
        default=limits.DISK_RING_ENTRIES,
        metadata=_about(integer(2, 4096, power_of_two=True), "disk operations in flight at most"),
    )
    direct_sync: Toggle = field(
        default=Toggle.AUTO,
        metadata=_about(choice(Toggle), "write and sync in one call (RWF_DSYNC) instead of a write and an fdatasync"),
    )


@dataclass(frozen=True, slots=True)
class StorageConfig(Section):
    """Files of a data directory."""

    wal_file_size: int = field(
        default=limits.WAL_FILE_SIZE,
        metadata=_about(
            integer(limits.WAL_FILE_SIZE_MIN, limits.WAL_FILE_SIZE_MAX), "bytes of one file of the write-ahead log"
        ),
    )
    checkpoint_size: int = field(
        default=limits.CHECKPOINT_SIZE,
        metadata=_about(
            integer(limits.WAL_FILE_SIZE_MIN, 1 << 40),
            "bytes of log after which its batches are in their places, whatever comes; bounds how long recovery takes",
        ),
    )
    ballast_size: int = field(
        default=limits.BALLAST_SIZE,
        metadata=_about(integer(0, 1 << 40), "bytes kept in reserve, so that deletes work on a full disk"),
    )


@dataclass(frozen=True, slots=True)
class FabricConfig(Section):
    """Shared memory of a pod; its parts and their order are in `docs/fabric.md`."""

    directory: str = field(
        default="",
        metadata=_about(path_text(may_be_empty=True), "folder of its file; if empty /dev/shm, else the data directory"),
    )
    brokers: int = field(default=1, metadata=_about(integer(1, limits.FABRIC_BROKERS_MAX), "brokers it has room for"))
    goi_entries: int = field(
        default=limits.FABRIC_GOI_ENTRIES,
        metadata=_about(
            integer(*limits.FABRIC_GOI_RANGE, power_of_two=True), "batches in the global order index, 96 bytes each"
        ),
    )
    pbr_entries: int = field(
        default=limits.FABRIC_PBR_ENTRIES,
        metadata=_about(
            integer(*limits.FABRIC_PBR_RANGE, power_of_two=True), "undecided batches of one broker, 128 bytes each"
        ),
    )
    checkpoint_size: int = field(
        default=limits.FABRIC_CHECKPOINT_SIZE,
        metadata=_about(size(*limits.FABRIC_CHECKPOINT_RANGE), "both checkpoints, 64 bytes a client and a topic each"),
    )
    blog_size: int = field(
        default=limits.FABRIC_BLOG_SIZE,
        metadata=_about(size(*limits.FABRIC_BLOG_RANGE), "bytes of undecided batches of one broker"),
    )


@dataclass(frozen=True, slots=True)
class TopologyConfig(Section):
    """Processors and memory nodes."""

    pin: bool = field(default=False, metadata=_about(switch(), "tie each role to processors of its own"))


@dataclass(frozen=True, slots=True)
class BenchConfig(Section):
    """Measurements."""

    directory: str = field(default=".", metadata=_about(path_text(), "folder in which the disk is measured"))
    seconds: float = field(default=2.0, metadata=_about(duration(0.01, 3600), "time spent on each figure, in seconds"))
    rounds: int = field(
        default=5, metadata=_about(integer(5, 1000), "rounds in which a figure and its baseline take turns")
    )


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting of Seawall."""

    kernels: KernelsConfig = field(default_factory=KernelsConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    fabric: FabricConfig = field(default_factory=FabricConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)

    def value(self, key: str) -> Value:
        """The value of one setting, by its key `section.field`."""
        section, name = key.split(".")
        found: Value = getattr(getattr(self, section), name)
        return found


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared about one setting."""

    key: str
    default: Value
    rule: Rule
    help: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
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
    """A configuration, and for each key where its value came from."""

    config: Config
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as a source gave it."""

    key: str
    raw: object
    origin: str
    line: int | None = None

    @property
    def place(self) -> str:
        return self.origin if self.line is None else f"{self.origin}, line {self.line}"


def load(
    path: str | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    flags: Mapping[str, object] = MappingProxyType({}),
) -> LoadedConfig:
    """Read the file (`path`, else the one SEAWALL_CONFIG names), the environment and the flags."""
    path = path or environ.get(FILE_VARIABLE)
    values = {key: declared.default for key, declared in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    for source in (_from_file(path) if path else (), _from_environment(environ), _from_flags(flags)):
        for given in source:
            rule = SETTINGS[given.key].rule
            value = rule.read(given.raw)
            if value is None:
                raise ConfigError(f"{given.key} is {_shown(given.raw)} ({given.place}): it must be {rule.allowed}")
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
            raise ConfigError(f"{section} is {_shown(table)} ({whole.place}): it must be a table of settings")
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
    return ConfigError(f"unknown {what} ({given.place}): {hint}")


# --- helpers -----------------------------------------------------------------------------------------------------


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:59] + "…"


def _line(text: str, section: str, name: str = "") -> int | None:
    """The line that most likely sets the key, for a message only; None where it is written in an unusual way."""
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

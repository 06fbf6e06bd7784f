"""The configuration: one frozen, typed object, each setting declared and explained once.

    [disk]                          SEAWALL_DISK_BACKEND=uring          --set disk.backend=uring
    backend = "uring"

    rules       which values a setting takes, and how a section checks itself
    sections    the settings of machine code, disk, files, shared memory and measurements
    server      those of a server
    loading     all of them as one object; file, environment and flags

Rules
- A setting that is silently ignored is worse than none: what is not declared is refused in every source.
- One rule reads a setting whatever its source. An environment variable can only be text, so text is welcome
  everywhere: sizes as "64MiB", durations as "250ms", numbers and switches too.
- A section checks itself when it is made, so a `Config` never holds a value that its rules refuse.
"""

from seawall.config.loading import (
    ENVIRONMENT_PREFIX,
    FILE_VARIABLE,
    SETTINGS,
    TOKEN_VARIABLE,
    Config,
    LoadedConfig,
    Setting,
    load,
)
from seawall.config.rules import Rule, Section, Value
from seawall.config.sections import (
    BenchConfig,
    DiskBackend,
    DiskConfig,
    FabricConfig,
    KernelsConfig,
    StorageConfig,
    Toggle,
    TopologyConfig,
)
from seawall.config.server import PastEnd, ServerConfig

__all__ = [
    "ENVIRONMENT_PREFIX",
    "FILE_VARIABLE",
    "SETTINGS",
    "TOKEN_VARIABLE",
    "BenchConfig",
    "Config",
    "DiskBackend",
    "DiskConfig",
    "FabricConfig",
    "KernelsConfig",
    "LoadedConfig",
    "PastEnd",
    "Rule",
    "Section",
    "ServerConfig",
    "Setting",
    "StorageConfig",
    "Toggle",
    "TopologyConfig",
    "Value",
    "load",
]

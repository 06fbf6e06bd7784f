"""The configuration: one frozen, typed object, each setting declared and explained once.

    [disk]                          SEAWALL_DISK_BACKEND=uring          --set disk.backend=uring
    backend = "uring"

    rules       the values that a setting accepts, and the validation of a section
    sections    the settings of kernels, disk, storage, shared memory and benchmarks
    server      the settings of a server
    loading     the whole configuration, from file, environment and flags

Rules
- A setting that is silently ignored is worse than none: every source refuses undeclared settings.
- One rule reads a setting from every source. An environment variable can only be text, so every source accepts text:
  sizes as "64MiB", durations as "250ms", numbers and switches too.
- A section validates itself on construction, so a `Config` never holds a value that its rules refuse.
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

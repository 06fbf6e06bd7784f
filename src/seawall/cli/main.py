"""The `seawall` command: global options, lazily loaded commands, and exit codes.

    seawall [--config FILE] [--set section.field=value]… [--debug] COMMAND …

Commands are declared here by name and loaded on first use: help and small commands start without numba, numpy, pyarrow
and rich. The configuration is loaded before a command runs; commands get it as the object of their context.

Exit codes: 0 done · 1 failed · 2 the caller's mistake (options, settings, input) · 130 interrupted. A `SeawallError` is
printed as one line on standard error, and with `--debug` also its traceback. A command exits quietly when the reader
of its output closes the pipe.
"""

from __future__ import annotations

import errno
import os
import traceback
from importlib import import_module

import click

from seawall import __version__
from seawall.config import SETTINGS, load
from seawall.errors import CallerError, SeawallError

EXIT_FAILED = 1
EXIT_CALLER = 2
EXIT_INTERRUPTED = 130

CACHE_DIR_KEY = "kernels.cache_dir"
#: Key of the `--set` flags in `context.meta`, for commands that read a file of their own.
FLAGS_KEY = "seawall.flags"
#: Key of the `--debug` flag in `context.meta`.
DEBUG_KEY = "seawall.debug"


class LazyCommand(click.Command):
    """A command that is loaded from its module on first use; only its line in the help is known before."""

    def __init__(self, name: str, module: str, help_line: str) -> None:
        super().__init__(name, short_help=help_line)
        self._module = module

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Load the command and delegate to it."""
        return self.loaded().make_context(info_name, args, parent, **extra)

    def loaded(self) -> click.Command:
        """Load and return the command itself."""
        command = getattr(import_module(self._module), str(self.name))
        assert isinstance(command, click.Command)
        return command


class Shell(click.Group):
    """The group of commands; it handles the errors of all of them."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; turn an error into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except SeawallError as error:
            _print_error(error, debug=ctx.meta[DEBUG_KEY])
            ctx.exit(EXIT_CALLER if isinstance(error, CallerError) else EXIT_FAILED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click exits quietly
            _print_error(error, debug=ctx.meta[DEBUG_KEY])
            ctx.exit(EXIT_FAILED)
        except KeyboardInterrupt:
            click.echo("seawall: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


def _print_error(error: Exception, *, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)
    click.echo(f"seawall: {error}", err=True)


def _read_flags(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    flags = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter(f"{text!r} has no value; write section.field=value")
        flags[key.strip()] = value
    return flags


COMMANDS = (
    LazyCommand("bench", "seawall.cli.bench", "Run benchmarks on this machine."),
    LazyCommand("config", "seawall.cli.config", "Show the settings and the origins of their values."),
    LazyCommand("delete", "seawall.cli.delete", "Delete records of a topic."),
    LazyCommand("doctor", "seawall.cli.doctor.command", "Check this machine: what is available, what is missing."),
    LazyCommand("dump", "seawall.cli.dump", "Show the contents of one file of a data directory."),
    LazyCommand("fabric", "seawall.cli.fabric", "Show the shared memory of a pod."),
    LazyCommand("pub", "seawall.cli.publish", "Publish lines, JSON lines or a whole file to a topic."),
    LazyCommand("queue", "seawall.cli.queue", "Push jobs, work on them, and look at queues."),
    LazyCommand("read", "seawall.cli.reading.read", "Print the records of a topic."),
    LazyCommand("router", "seawall.cli.router", "Create, list, describe and delete routers between topics."),
    LazyCommand("serve", "seawall.cli.serve", "Serve a data directory to clients of the binary protocol."),
    LazyCommand("session", "seawall.cli.session", "List and retire the sessions of publishers."),
    LazyCommand("status", "seawall.cli.status", "Show the status of a server."),
    LazyCommand("sub", "seawall.cli.reading.subscribe", "Print the records of a topic as they arrive."),
    LazyCommand("topic", "seawall.cli.topic", "Create, list, describe, change and delete topics."),
    LazyCommand("verify", "seawall.cli.verify", "Read a whole data directory and report all damage."),
    LazyCommand("watch", "seawall.cli.reading.watch", "Print the records of many topics as they arrive."),
    LazyCommand("worker", "seawall.cli.worker.command", "Execute the jobs of a queue of background tasks."),
)


@click.group(cls=Shell, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="seawall")
@click.option("--config", "path", metavar="FILE", help="Read settings from this TOML file; default: $SEAWALL_CONFIG.")
@click.option(
    "--set",
    "flags",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_read_flags,
    help="Set the value of a setting; may be repeated. `seawall config show --describe` explains every key.",
)
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.pass_context
def seawall(context: click.Context, path: str | None, flags: dict[str, str], debug: bool) -> None:
    """Seawall: an ordered, durable shared log for Python and Spark.

    \b
    Example:
      seq 1 1000 | seawall pub numbers --create && seawall read numbers --limit 3
    """
    context.meta[DEBUG_KEY] = debug
    context.meta[FLAGS_KEY] = flags
    loaded = load(path, os.environ, flags)
    if loaded.origins[CACHE_DIR_KEY] != "default":
        # The kernels read their cache directory from the environment on import, here and in child processes.
        os.environ[SETTINGS[CACHE_DIR_KEY].variable] = loaded.config.kernels.cache_dir
    context.obj = loaded


def main() -> None:
    """Run the command line of this process."""
    seawall.main(prog_name="seawall")

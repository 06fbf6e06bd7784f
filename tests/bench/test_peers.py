"""The systems that Seawall is compared with: real servers and clients at tiny sizes.

A system that this machine does not have is skipped, with the way to get it. Redis starts in milliseconds; the tests of
the others are slow.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

import pytest
from click.testing import CliRunner

from seawall import config
from seawall.bench.harness import BenchContext, Selection
from seawall.bench.peers import client_runs
from seawall.bench.peers.bed import Bed, Scale, Shape
from seawall.bench.peers.client_process import Options, percentiles
from seawall.bench.peers.clients.base import Until, age_ns, paced, stamp, wait_for_port
from seawall.bench.peers.servers import disk_bytes, prepared, running
from seawall.bench.peers.shapes import shapes
from seawall.bench.peers.system import DEFAULT_PROGRAMS, System
from seawall.bench.peers.systems.kafka import Kafka
from seawall.bench.peers.systems.nats import Nats
from seawall.bench.peers.systems.redis import Redis
from seawall.bench.peers.systems.seawall import Seawall
from seawall.bench.suites import peers
from seawall.cli.bench import bench
from seawall.errors import InvalidInputError
from seawall.limits import KIB, MIB

PROGRAMS = DEFAULT_PROGRAMS.expanduser()
TINY = Scale(
    jobs_min=10,
    jobs_warm_up=2,
    consumed_size=3 * MIB,
    loaded_size=MIB,
    recovered_size=2 * MIB,
    waiting_counts=(2,),
    paced_min=20,
    paced_warm_up=10,
)
SYSTEMS: dict[str, System] = {"redis": Redis(), "seawall": Seawall(), "kafka": Kafka(), "nats": Nats()}
#: The figures that a run of each shape reports for every system.
KEYS = {
    "bulk": {"lists", "calls", "best"},
    "durable": {"bytes"},
    "lone": {"p50", "p99"},
    "waiting": {"2"},
    "follow": {"p50", "p99"},
    "consume": {"records"},
    "start": {"seconds", "idle", "after", "peak"},
    "recovery": {"seconds"},
    "disk": {"ratio"},
}


def systems() -> Iterator[object]:
    for key in SYSTEMS:
        yield pytest.param(key, marks=[] if key == "redis" else [pytest.mark.slow])


def present(key: str) -> System:
    """The system; skips the test if this machine does not have it."""
    system = SYSTEMS[key]
    if (reason := system.missing(PROGRAMS)) is not None:
        pytest.skip(f"{system.name}: {reason}")
    return system


@pytest.fixture(params=systems())
def system(request: pytest.FixtureRequest) -> System:
    return present(request.param)


JOB_SHAPES = [shape for name in ("queues", "jobs") for shape in shapes(TINY)[name]]
#: Workers of the others take seconds to start: two systems are enough for the fast tests.
JOB_PARAMETERS = [
    pytest.param(
        shape,
        system,
        id=f"{system.key}-{shape.name}",
        marks=[] if system.key in ("redis-groups", "dramatiq") else [pytest.mark.slow],
    )
    for shape in JOB_SHAPES
    for system in shape.systems
]


@pytest.mark.parametrize(("shape", "system"), JOB_PARAMETERS)
def test_every_shape_of_jobs_is_measured_and_leaves_nothing(shape: Shape, system: System, tmp_path: Path) -> None:
    """Jobs that are lost, or executed twice, would be an error."""
    if (reason := system.missing(PROGRAMS)) is not None:
        pytest.skip(f"{system.name}: {reason}")
    with shape.open(Bed(system, PROGRAMS, tmp_path, TINY))() as run:
        figures = run(0.02)
    assert set(figures) == {figure.key for figure in shape.figures}
    assert all(value > 0 for value in figures.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", KEYS)
def test_every_shape_is_measured_and_leaves_nothing(system: System, name: str, tmp_path: Path) -> None:
    for shape in shapes(TINY)[name]:
        with shape.open(Bed(system, PROGRAMS, tmp_path, TINY))() as run:
            figures = run(0.02)
        expected = KEYS[name] | ({"arrow"} if (name, system.key) == ("consume", "seawall") else set())
        assert set(figures) == expected
        assert all(value > 0 for value in figures.values())
        # What a figure of the report needs is there.
        for figure in shape.figures:
            assert figure.key in figures or figure.of_other(figures) is not None
    assert list(tmp_path.iterdir()) == []


def test_a_killed_server_keeps_its_records_and_a_paused_one_answers_later(system: System, tmp_path: Path) -> None:
    count = 64
    with running(system, PROGRAMS, tmp_path, synced=True) as server:
        options = Options(server.port, "kept", synced=True, count=count, seconds=0.0)
        client_runs.run_client(system.key, "create", options)
        client_runs.run_client(system.key, "fill", options)
        used = disk_bytes(server.setup.data)
        assert used > count * KIB
        assert server.memory_bytes() > MIB
        server.kill()
        server.start()
        server.wait_until_listening()
        with client_runs.client(system.key, "first_read", options) as reader:
            reader.wait_until_ready()
            assert reader.figures()["time_ns"] > 0
        server.pause()
        with client_runs.client(system.key, "consume", options) as reader:
            assert select.select([reader.output], [], [], 0)[0] == []
            server.resume()
            figures = reader.figures()
        assert figures["bytes"] == count * KIB


def test_peak_memory_is_at_least_what_it_is_now(tmp_path: Path) -> None:
    with running(present("redis"), PROGRAMS, tmp_path, synced=False) as server:
        with server.peak_memory() as peak:
            now = server.memory_bytes()
            client_runs.run_client("redis", "fill", Options(server.port, "grown", size=MIB, count=8))
            after = server.memory_bytes()
        assert after > now + 4 * MIB
        assert peak[0] > 0


def test_a_client_that_fails_reports_its_error(tmp_path: Path) -> None:
    with running(present("redis"), PROGRAMS, tmp_path, synced=False) as server:
        options = Options(server.port, "short", count=3, seconds=0.0)
        with pytest.raises(ChildProcessError, match=r"the client of redis \(consume\) exited: .*0 of 3 records came"):
            client_runs.run_client("redis", "consume", options)


#: Overlooks the first signal, as a worker of RQ did.
FORGETFUL = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("{}", flush=True))))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_worker_that_overlooks_a_signal_gets_another(tmp_path: Path) -> None:
    with (
        (tmp_path / "errors").open("w+", encoding="utf-8") as errors,
        subprocess.Popen([sys.executable, "-c", FORGETFUL], stdout=subprocess.PIPE, text=True) as process,
    ):
        run = client_runs.ClientRun("a worker", process, errors)
        run.wait_until_ready()
        run.stop(repeat_seconds=0.2)
        assert process.wait(10) == 0


class Broken(Seawall):
    """A system whose server ends at once."""

    key = "broken"
    name = "Broken"

    def command(self, _programs: Path, _setup: object) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no licence')"]


def test_a_server_that_does_not_start_reports_the_end_of_its_log(tmp_path: Path) -> None:
    with prepared(Broken(), PROGRAMS, tmp_path, synced=False) as server:
        server.start()
        with pytest.raises(ChildProcessError, match="Broken did not start: it exited; its log ends with: no licence"):
            server.wait_until_listening()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_run_has_no_memory(tmp_path: Path) -> None:
    with prepared(Broken(), PROGRAMS, tmp_path, synced=False) as server:
        server.kill()
        with pytest.raises(ChildProcessError, match="Broken does not run"):
            server.memory_bytes()


#: Starts a server that sleeps, prints its process id, and waits to be killed.
PARENT = """
import sys
from pathlib import Path
from seawall.bench.peers.servers import prepared
from seawall.bench.peers.systems.seawall import Seawall

class Sleeper(Seawall):
    def command(self, programs, setup):
        return [sys.executable, "-c", "import time; time.sleep(600)"]

with prepared(Sleeper(), Path(), Path(sys.argv[1]), synced=False) as server:
    server.start()
    print(server._process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for a process that is not a child")
def test_a_server_ends_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([server], [], [], 60)
    os.close(server)
    assert ended


# --- what is missing ---------------------------------------------------------------------------------------------


def test_what_is_missing_is_reported_with_the_command_that_gets_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    context = BenchContext(1.0, 3, tmp_path, Selection(shapes=("lone",), programs=tmp_path), rounds_min=3)
    (found,) = peers.compared(context, TINY)
    assert found.missing == {
        "Kafka": "java is not on the path: install a Java runtime, 17 or later",
        "Redis": "redis-server is not on the path; get it with: apt-get install redis-server",
        "NATS": f"nats-server is neither in {tmp_path / 'bin'} nor on the path; get it with: make peers",
    }
    assert found.others == ()


def test_an_old_nats_server_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nats-server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    program.chmod(0o755)
    assert Nats().missing(tmp_path) == "nats-server 2.9.10 cannot sync before each ack; get it with: make peers"


def test_missing_jars_are_named(tmp_path: Path) -> None:
    if (reason := Kafka().missing(tmp_path)) is None or "java" in reason:
        pytest.skip(f"Kafka: {reason}")
    assert reason == f"there are no jars of Kafka in {tmp_path / 'kafka'}; get it with: make peers"


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(only=("rabbit",)), "unknown system 'rabbit': choose from kafka, redis, nats, rq, dramatiq, celery"),
        (Selection(only=("rq",), shapes=("lone",)), "no shape of lone has rq"),
        (Selection(shapes=("lone", "long")), "unknown shape 'long': choose from bulk, durable, lone"),
    ],
)
def test_unknown_names_are_refused(selection: Selection, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message):
        list(peers.compared(BenchContext(1.0, 3, tmp_path, selection, rounds_min=3), TINY))


def test_each_shape_has_its_systems_and_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("seawall.bench.peers.systems.jobs.find_spec", lambda _name: None)
    present("redis")
    context = BenchContext(1.0, 3, tmp_path, Selection(only=("redis", "celery")), rounds_min=3)
    found = {each.name: each for each in peers.compared(context, TINY)}
    assert [side.name for side in found["bulk, 1 KiB records"].sides] == ["Seawall", "Redis"]
    assert [side.name for side in found["queues"].sides] == ["Seawall", "Redis groups", "Redis lists"]
    how = "the Python package celery is not installed; get it with: make peers"
    assert found["jobs"].missing == {"Celery": how, "Celery threads": how}
    (seawall,) = {each.subject.description for each in found.values()}
    assert all(part in seawall for part in ("written: ", "queues: class fsync", "jobs: a TaskQueue"))
    assert all("appendfsync always" in side.description for side in found["queues"].others)


@pytest.mark.slow
def test_the_command_compares_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Seawall beside Redis, and NATS missing: figures of both, and an exit code that says that one is missing."""
    present("redis")
    monkeypatch.setattr(peers, "Scale", lambda: replace(TINY))
    monkeypatch.setattr(Nats, "missing", lambda _self, _programs: "get it with: make peers")
    loaded = config.load(environ={}, flags={"bench.directory": str(tmp_path)})
    arguments = ["peers", "--only", "redis,nats", "--shapes", "disk", "--seconds", "0.1", "--check"]
    done = CliRunner().invoke(bench, arguments, obj=loaded)
    assert done.exit_code == 1, done.output
    assert "missing: NATS: get it with: make peers" in done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("│ disk bytes")]
    assert row.count(" x ") == 2
    assert "Redis: Redis " in done.stdout
    assert list(tmp_path.iterdir()) == []


# --- small parts -------------------------------------------------------------------------------------------------


def test_a_stamped_record_tells_its_age() -> None:
    record = stamp(0, 100)
    assert len(record) == 100
    first, second = age_ns(record), age_ns(record)
    assert 0 < first <= second


def test_records_that_are_held_back_are_stamped_with_the_time_they_were_due() -> None:
    interval_ns = 1_000_000
    times = paced(3, interval_ns)
    first = next(times)
    while monotonic_ns() < first + 5 * interval_ns:
        pass
    second, third = times
    assert third - second == interval_ns
    assert third < monotonic_ns()


def test_until_ends_by_time_or_by_number_and_never_before_the_first() -> None:
    assert Until(deadline_ns=0).goes_on(0)
    assert not Until(deadline_ns=0).goes_on(1)
    assert Until(records=10).goes_on(9)
    assert not Until(records=10).goes_on(10)


def test_percentiles_are_those_of_the_samples() -> None:
    figures = percentiles([int(1e9) * each for each in range(100, -1, -1)])
    assert (figures["p50"], figures["p99"], figures["records"]) == (50.0, 99.0, 101)


def test_waiting_for_a_port_ends_when_the_server_is_dead() -> None:
    with pytest.raises(ChildProcessError, match="it exited"):
        wait_for_port(1, 60.0, lambda: False)
    with pytest.raises(TimeoutError, match="nothing listens on port 1"):
        wait_for_port(1, 0.0)


def test_versions_and_settings_are_reported(system: System) -> None:
    assert system.name.lower() in system.version(PROGRAMS).lower()
    assert "synced:" in system.settings()
    assert "written:" in system.settings()

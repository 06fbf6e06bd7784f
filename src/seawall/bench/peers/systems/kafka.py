"""Apache Kafka 4: one process that is broker and controller (KRaft), run from its jars."""

from __future__ import annotations

import shutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from seawall.bench.peers.clients.base import HOST
from seawall.bench.peers.system import HOW_TO_GET, Setup

_CLUSTER_ID: Final = "c2Vhd2FsbC1iZW5jaC0wMQ"
_HEAP: Final = "1g"
_FORMAT_SECONDS: Final = 120.0

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{inner_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{inner_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.segment.delete.delay.ms=100
"""
#: By default the controller takes a broker for dead that did not answer for nine seconds. A broker that was killed and
#: starts again has to wait for that, so only one that is paused gets more.
_PAUSED: Final = "broker.session.timeout.ms=3600000\n"


class Kafka:
    """One broker with its controller."""

    key = "kafka"
    name = "Kafka"

    def missing(self, programs: Path) -> str | None:
        """Java, the jars or the client."""
        if shutil.which("java") is None:
            return "java is not on the path: install a Java runtime, 17 or later"
        if _jar(programs) is None:
            return f"there are no jars of Kafka in {programs / 'kafka'}; {HOW_TO_GET}"
        if find_spec("confluent_kafka") is None:
            return f"the Python package confluent-kafka is not installed; {HOW_TO_GET}"
        return None

    def version(self, programs: Path) -> str:
        """From the names of the jars."""
        jar = _jar(programs)
        number = "" if jar is None else jar.stem.rpartition("-")[2]
        return f"Kafka {number}, confluent-kafka {metadata.version('confluent-kafka')}"

    def settings(self) -> str:
        """The options that are set."""
        return (
            f"KRaft, one broker, one partition, heap {_HEAP}, acks=all; written: its defaults; synced: "
            "flush.messages=1; bulk: produce_batch() of 1,000 or produce(), linger.ms=5, batch.size=1 MiB; waiting: "
            "linger.ms=0; poll(), consume(1000)"
        )

    def prepare(self, programs: Path, setup: Setup) -> None:
        """Write the properties and format the data directory."""
        text = _PROPERTIES.format(host=HOST, port=setup.port, inner_port=setup.inner_port, data=setup.data)
        if setup.is_paused:
            text += _PAUSED
        properties = setup.directory / "server.properties"
        properties.write_text(text, encoding="utf-8")
        command = [*_java(programs), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_SECONDS, check=False)
        if done.returncode:
            raise ChildProcessError(f"Kafka could not format its directory: {done.stdout}{done.stderr}")

    def command(self, programs: Path, setup: Setup) -> list[str]:
        """The broker with the garbage collector and the heap that its own scripts choose."""
        options = ["-server", f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return [*_java(programs, *options), "kafka.Kafka", str(setup.directory / "server.properties")]


def _java(programs: Path, *options: str) -> list[str]:
    return ["java", *options, "-cp", f"{programs / 'kafka'}/*"]


def _jar(programs: Path) -> Path | None:
    return next(iter(sorted((programs / "kafka").glob("kafka_2.13-*.jar"))), None)

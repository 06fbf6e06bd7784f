"""`seawall fabric`: the layout, and a fabric in use, as text and as JSON."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from seawall import open as seawall_open
from seawall.cli.main import seawall
from seawall.fabric import records
from seawall.fabric.checkpoint import Checkpoint, write_checkpoint
from seawall.fabric.header import Identity
from seawall.fabric.inspect import BrokerReport, CheckpointReport, ControlReport, ReplicaReport, report
from seawall.fabric.layout import FabricSizes
from seawall.fabric.mapping import Fabric
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.kernels.runtime.slots import publish_slot
from seawall.limits import KIB

MAP = """\
            at           bytes  region                  count     of bytes  writer
           0x0             128  control                     1          128  frontier
          0x80             256  header                      1          256  creator
         0x180            2048  broker_tails               32           64  broker
         0x980            1024  replica_vector             16           64  replica
        0x1000            4096  completion_vector          32          128  frontier
        0x2000            8192  goi                       128           64  sequencer
        0x4000            8192  pbr                       128           64  broker
        0x6000            8192  checkpoint                  2         4096  frontier
        0x8000            8192  results                   128           64  frontier
        0xa000            4096  side                      128           32  frontier
        0xb000          131072  blogs                       2        65536  broker
       0x2b000          176128  all: 172.0 KiB
"""

FULL_MAP = """\
            at           bytes  region                  count     of bytes  writer
           0x0             128  control                     1          128  frontier
          0x80             256  header                      1          256  creator
         0x180            2048  broker_tails               32           64  broker
         0x980            1024  replica_vector             16           64  replica
        0x1000            4096  completion_vector          32          128  frontier
        0x2000     17179869184  goi                 268435456           64  sequencer
   0x400002000      1073741824  pbr                  16777216           64  broker
   0x440002000        16777216  checkpoint                  2      8388608  frontier
   0x441002000      1073741824  results              16777216           64  frontier
   0x481002000      8589934592  side                268435456           32  frontier
   0x681002000    521821618176  blogs                      32  16306925568  broker
  0x7ffffe2000    549755691008  all: 512.0 GiB
"""

SEEN = """\
control       term 3, leader 12345, lease until 777 ns, 2 brokers, mask 0x3
frontiers     durable 130, committed 140, ordered 143
broker 0      completed 0, claimed 0, pending 0 of 64 (0%), ready 0, decided 0, 0 bytes claimed
broker 1      completed 70, claimed 86, pending 16 of 64 (25%), ready 8, decided 5, 4096 bytes claimed
replica 0     durable 130, view 2, never seen
checkpoint 0  generation 2, position 120, term 3, 2 clients, 1 topics
checkpoint 1  generation 1, position 60, term 3, 1 clients, 0 topics
"""

SIZES = FabricSizes(brokers=2, goi_entries=128, pbr_entries=64, checkpoint_size=8 * KIB, blog_size=64 * KIB)
FLAGS = [
    *("--set", "fabric.brokers=2", "--set", "fabric.goi_entries=128", "--set", "fabric.pbr_entries=64"),
    *("--set", "fabric.checkpoint_size=8KiB", "--set", "fabric.blog_size=64KiB"),
]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(seawall, list(arguments))


def fill(fabric: Fabric) -> None:
    """A pod at work: some slots of broker 1 are decided, some ready, some only claimed."""
    arrays, content = fabric.arrays, np.zeros(8, np.int64)
    control = arrays.control[0]
    for name, value in {
        "term": 3,
        "leader": 12345,
        "lease_ns": 777,
        "broker_mask": 3,
        "broker_count": 2,
        "committed": 140,
        "durable": 130,
    }.items():
        control[name] = value
    for position in (140, 141, 142, 144):
        publish_slot(arrays.goi_words, records.GOI_TOKEN, position, content)
    arrays.completion_words[1][0] = 70
    arrays.tail_words[1][:2] = (86, 4096)
    for index in (*range(70, 78), 80):
        publish_slot(arrays.pbr_words[1], records.PBR_TOKEN, index, content)
    for index in range(70, 75):
        publish_slot(arrays.result_words[1], records.RESULT_TOKEN, index, content)
    arrays.replica_words[0][:2] = (130, 2)
    rows = np.ones(64, np.uint8)
    write_checkpoint(arrays, Checkpoint(1, 60, 3, 0, rows, rows[:0]))
    write_checkpoint(arrays, Checkpoint(2, 120, 3, 0, np.ones(128, np.uint8), rows))


@pytest.fixture
def fabric(tmp_path: Path) -> Fabric:
    identity = Identity(bytes(range(16)), bytes(range(16, 32)))
    made = Fabric.create(OsSharedMemory(), str(tmp_path / "fabric"), SIZES, identity, created_ns=1234)
    fill(made)
    return made


def test_the_layout_of_the_settings() -> None:
    assert run(*FLAGS, "fabric", "layout").output == MAP


def test_the_layout_of_the_largest_fabric() -> None:
    assert run("fabric", "layout", "--full").output == FULL_MAP


def test_the_layout_as_json() -> None:
    document = json.loads(run(*FLAGS, "fabric", "layout", "--json").output)
    assert document["size"] == 176128
    assert document["regions"][5] == {
        "region": "goi",
        "at": 0x2000,
        "size": 8192,
        "count": 128,
        "entry_size": 64,
        "writer": "sequencer",
    }
    assert len(document["regions"]) == 11


def test_a_fabric_in_use_as_text(fabric: Fabric) -> None:
    result = run("fabric", "inspect", fabric.path)
    assert result.exit_code == 0
    head = (
        f"path          {fabric.path}\nboot_id       000102030405060708090a0b0c0d0e0f\n"
        "directory_id  101112131415161718191a1b1c1d1e1f\ncreated_ns    1234\n"
    )
    assert result.output == f"{head}\n{MAP}\n{SEEN}"


def test_a_fabric_in_use_as_json(fabric: Fabric) -> None:
    document = json.loads(run("fabric", "inspect", fabric.path, "--json").output)
    assert list(document) == [
        *("path", "boot_id", "directory_id", "created_ns", "size", "regions"),
        *("control", "brokers", "replicas", "checkpoints"),
    ]
    assert document["control"] == {
        "term": 3,
        "leader": 12345,
        "lease_ns": 777,
        "broker_mask": 3,
        "broker_count": 2,
        "durable": 130,
        "committed": 140,
        "ordered": 143,
    }
    assert document["brokers"][1] == {
        "broker": 1,
        "completed": 70,
        "claimed": 86,
        "pending": 16,
        "ready": 8,
        "decided": 5,
        "entries": 64,
        "blog_claimed": 4096,
    }
    assert document["replicas"] == [{"replica": 0, "durable": 130, "view": 2, "heartbeat_ns": 0, "age_ns": None}]
    assert [each["generation"] for each in document["checkpoints"]] == [2, 1]


def test_the_report_of_a_live_fabric(fabric: Fabric) -> None:
    fabric.arrays.replica_words[15][2] = 1_000
    seen = report(fabric, now_ns=1_500)
    assert seen.control == ControlReport(3, 12345, 777, 3, 2, 130, 140, 143)
    assert seen.brokers[0] == BrokerReport(0, 0, 0, 0, 0, 0, 64, 0)
    assert seen.replicas[1] == ReplicaReport(15, 0, 0, 1_000, 500)
    assert seen.checkpoints[0] == CheckpointReport(0, 2, 120, 3, 2, 1)
    assert report(fabric, now_ns=900).replicas[1].age_ns == 0


def test_a_new_fabric_has_no_replicas_and_no_checkpoints(tmp_path: Path) -> None:
    made = Fabric.create(OsSharedMemory(), str(tmp_path / "new"), SIZES, Identity(bytes(16), bytes(16)))
    seen = report(made, now_ns=1)
    assert seen.control == ControlReport(0, 0, 0, 0, 0, 0, 0, 0)
    assert (len(seen.brokers), seen.replicas, seen.checkpoints) == (2, (), ())


def test_a_live_replica_has_an_age(fabric: Fabric) -> None:
    fabric.arrays.replica_words[2][2] = 1
    [line] = [line for line in run("fabric", "inspect", fabric.path).output.splitlines() if "replica 2" in line]
    assert line.startswith("replica 2     durable 0, view 0, seen ")
    assert line.endswith(" s ago")


def test_inspecting_writes_nothing(fabric: Fabric) -> None:
    before = Path(fabric.path).read_bytes()
    assert run("fabric", "inspect", fabric.path).exit_code == 0
    assert Path(fabric.path).read_bytes() == before


def test_a_damaged_fabric_is_still_inspected(fabric: Fabric) -> None:
    for words in (fabric.arrays.control_words, *fabric.arrays.tail_words, *fabric.arrays.completion_words):
        words[:] = 2**64 - 1
    fabric.arrays.replica_words[4][:] = 2**64 - 1
    result = run("fabric", "inspect", fabric.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"leader {2**64 - 1}" in result.output


def test_files_that_are_no_fabric_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(os.urandom(10_000))
    result = run("fabric", "inspect", str(other))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"seawall: {other}: not a Seawall fabric")
    assert run("fabric", "inspect", str(tmp_path / "none")).exit_code == 2


def test_the_fabric_of_a_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Commands take the directory from the environment, a program that opens a log from its settings.
    monkeypatch.delenv("SEAWALL_FABRIC_DIRECTORY", raising=False)
    data = tmp_path / "data"
    with seawall_open(data, brokers=2) as log:
        log.create_topic("events")
        log.publish("events", b"one")
        document = json.loads(run("fabric", "inspect", "--data", str(data), "--json").output)
        assert [broker["pending"] for broker in document["brokers"]] == [0, 0]
        assert document["control"]["durable"] == document["control"]["committed"] > 0
    closed = run("fabric", "inspect", "--data", str(data))
    assert closed.exit_code != 0
    assert "is not open with brokers" in closed.output
    assert run("fabric", "inspect", "--data", str(tmp_path / "nothing")).exit_code != 0

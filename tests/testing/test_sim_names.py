"""File names on a simulated disk under random use: they equal real ones, and a crash loses no durable file."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.io.disk.files import OsFiles, write_all
from seawall.io.interfaces import Files
from seawall.testing import SimDisk

NAMES = ["d/a", "d/b", "e/a", "e/b"]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(NAMES), st.just("")),
        st.tuples(st.just("unlink"), st.sampled_from(NAMES), st.just("")),
        st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.just("sync"), st.sampled_from(["d", "e"]), st.just("")),
    ),
    max_size=15,
)


def apply(files: Files, root: str, step: tuple[str, str, str], label: bytes) -> int | None:
    """Do one step; a created file holds its own label. Returns the errno of a refusal."""
    name, first, second = step
    try:
        if name == "create":
            file = files.open(f"{root}/{first}", exclusive=True)
            write_all(file, [label], 0)
            file.sync()
            file.close()
        elif name == "unlink":
            files.unlink(f"{root}/{first}")
        elif name == "rename":
            files.rename(f"{root}/{first}", f"{root}/{second}")
        else:
            files.sync_directory(f"{root}/{first}")
    except OSError as error:
        return error.errno
    return None


def tree(files: Files, root: str) -> dict[str, bytes]:
    """Every file and its label."""
    found = {}
    for directory in ("d", "e"):
        for name in files.list(f"{root}/{directory}"):
            file = files.open(f"{root}/{directory}/{name}")
            found[f"{directory}/{name}"] = file.read(100, 0)
            file.close()
    return found


def simulated(seed: int) -> SimDisk:
    disk = SimDisk(seed)
    for directory in ("/d", "/e"):
        disk.make_directory(directory)
    disk.sync_directory("/")
    return disk


@settings(max_examples=50)
@given(steps)
def test_without_crashes_simulated_names_equal_real_ones(tmp_path_factory, sequence):
    root = str(tmp_path_factory.mktemp("names"))
    real, disk = OsFiles(), simulated(0)
    for directory in ("d", "e"):
        os.mkdir(f"{root}/{directory}")
    for number, step in enumerate(sequence):
        label = b"%d" % number
        assert apply(real, root, step, label) == apply(disk, "", step, label)
        assert tree(real, root) == tree(disk, "")


@given(steps, st.integers(0, 1_000), st.sampled_from(["none", "all", "random"]))
def test_a_crash_never_loses_a_durable_file(sequence, seed, keep):
    disk = simulated(seed)
    durable: set[bytes] = set()
    created: set[bytes] = set()
    removed: set[bytes] = set()
    for number, step in enumerate(sequence):
        before = set(tree(disk, "").values())
        apply(disk, "", step, b"%d" % number)
        after = tree(disk, "")
        created |= set(after.values())
        removed |= before - set(after.values())
        if step[0] == "sync":
            durable |= {label for path, label in after.items() if path.startswith(step[1])}
    cached = tree(disk, "")
    disk.crash(keep)
    left = tree(disk, "")
    labels = list(left.values())
    assert len(labels) == len(set(labels)), disk.history()
    assert durable - removed <= set(labels) <= created, disk.history()
    if keep == "all":
        assert left == cached


@pytest.mark.parametrize("keep", ["none", "random"])
def test_exactly_the_last_synced_names_are_left(keep):
    disk = simulated(4)
    for number, step in enumerate([("create", "d/a", ""), ("create", "e/b", ""), ("rename", "d/a", "e/a")]):
        apply(disk, "", step, b"%d" % number)
    disk.sync_directory("/e")
    disk.sync_directory("/d")
    disk.crash(keep)
    assert tree(disk, "") == {"e/a": b"0", "e/b": b"1"}

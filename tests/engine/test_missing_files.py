"""Files that are missing or truncated when a directory is opened: no record is lost without a report.

Each kind of file is removed, emptied or halved, in a directory after an orderly shutdown and in one whose process was
killed. Then the directory is opened, viewed and verified. `docs/format.md` has the table.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from missing_files import CASES, SETTINGS, Answer, Kind, Outcome, answer, build, damage, tree

from seawall.engine.api.open_log import open_log
from seawall.engine.api.verify import verification
from seawall.engine.api.view import open_view
from seawall.engine.transactions import adoption
from seawall.errors import CorruptionError, InvalidInputError, NotFoundError
from seawall.io.disk.files import OsFiles
from seawall.storage.findings import Finding
from seawall.storage.preface import DATA_START
from seawall.storage.read_only import open_for_reading

REFUSALS = (CorruptionError, InvalidInputError, NotFoundError)

cases = pytest.mark.parametrize(
    ("kind", "how"), [pytest.param(*case, id=f"{case[0].name}-{case[1]}") for case in CASES]
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories `closed` and `killed`, which tests copy and never change."""
    home = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adoption, "SIZE_MIN", 0)
        with open_log(home / "closed", SETTINGS) as log:
            build(log)
            shutil.copytree(home / "closed", home / "killed")
    return home


@pytest.fixture(params=[pytest.param("closed", marks=pytest.mark.slow), "killed"])
def whole(images: Path, request: pytest.FixtureRequest) -> Path:
    """One of the directories, unchanged."""
    return images / str(request.param)


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "data")


@pytest.fixture
def killed(images: Path, tmp_path: Path) -> Path:
    return shutil.copytree(images / "killed", tmp_path / "killed")


@pytest.fixture(scope="module")
def answers(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """The content of each directory when nothing is missing."""
    found = {}
    for name in ("closed", "killed"):
        path = shutil.copytree(images / name, tmp_path_factory.mktemp("answers") / name)
        with open_log(path, SETTINGS) as log:
            found[name] = answer(log)
    return found


def findings(data: Path) -> list[Finding]:
    files = OsFiles()
    with open_for_reading(files, str(data)) as directory:
        return list(verification(files, directory).run())


def costly_findings(data: Path) -> list[Finding]:
    """The findings of verification that lose something."""
    found = findings(data)
    return [each for each in found if "nothing is lost" not in each.remedy and "no record is lost" not in each.what]


def check_lost(kind: Kind, how: str, before: Answer, after: Answer) -> None:
    """The lost records are those that the file held, and are gaps with reason corruption."""
    assert kind.lost is not None
    name, seqs = kind.lost
    assert {topic: found for topic, found in after.items() if topic != name} == {
        topic: found for topic, found in before.items() if topic != name
    }
    (records_before, gaps_before), (records, gaps) = before[name], after[name]
    assert records.items() <= records_before.items()
    lost = records_before.keys() - records.keys()
    assert lost == {*seqs} if how != "halved" else lost and lost <= {*seqs}
    new = [gap for gap in gaps if gap not in gaps_before]
    assert {reason for _, _, reason in new} == {"CORRUPTION"}
    assert {seq for first, last, _ in new for seq in range(first, last + 1)} == lost


def test_the_image_has_every_kind_of_file(whole: Path, data: Path, answers: dict[str, Answer]) -> None:
    for kind, _ in CASES:
        assert list(kind.choose(data)), kind.name
    assert findings(data) == []
    records, _ = answers[whole.name]["events"]
    assert [*records] == [*range(15, 74)]
    assert [*answers[whole.name]["moved"][0]] == [1, 2]
    assert [*answers[whole.name]["late"][0]] == [1, 2, 3, 4]


@cases
def test_opening_refuses_or_reports_a_missing_file(
    kind: Kind, how: str, whole: Path, data: Path, answers: dict[str, Answer]
) -> None:
    """INV-REPLAY-WHOLE."""
    damage(kind.choose(data), how)
    before = tree(data)
    if kind.outcome is Outcome.REFUSED:
        with pytest.raises(REFUSALS, match=f"{kind.message}.*restore"):
            open_log(data, SETTINGS)
        assert tree(data) == before
        # The remedy of the message works.
        with suppress(FileNotFoundError):
            (data / "LOCK").unlink()
        shutil.copytree(whole, data, dirs_exist_ok=True)
    for times in range(1 if kind.outcome is Outcome.REFUSED else 2):
        with open_log(data, SETTINGS) as log:
            found = answer(log)
            if kind.outcome is Outcome.GAP:
                check_lost(kind, how, answers[whole.name], found)
            else:
                assert found == answers[whole.name]
            assert log.committed("reader", "events") == 7
            if not times:
                log.checkpoint()
    if kind.outcome is not Outcome.GAP:
        assert costly_findings(data) == []


@cases
def test_a_view_refuses_or_reports_a_missing_file(kind: Kind, how: str, killed: Path) -> None:
    with open_view(killed) as view:
        whole = answer(view)
    damage(kind.choose(killed), how)
    before = tree(killed)
    if kind.outcome is Outcome.REFUSED or (kind.view_refuses and how == "removed"):
        with pytest.raises(REFUSALS, match=r"restore|seawall verify reports"), open_view(killed) as view:
            answer(view)
    else:
        with open_view(killed) as view:
            found = answer(view)
        if kind.outcome is Outcome.GAP:
            check_lost(kind, how, whole, found)
        else:
            assert found == whole
    assert tree(killed) == before


@cases
def test_verification_reports_a_missing_file(kind: Kind, how: str, killed: Path) -> None:
    damage(kind.choose(killed), how)
    before = tree(killed)
    if kind.name in ("FORMAT", "directory wal", "directory meta", "directory topics"):
        with pytest.raises(REFUSALS, match=f"{kind.message}.*restore"):
            findings(killed)
        assert tree(killed) == before
        return
    costly = costly_findings(killed)
    assert tree(killed) == before
    assert bool(costly) == (kind.outcome is not Outcome.DERIVED)
    assert all("restore" in each.remedy for each in costly)
    if kind.outcome is Outcome.GAP:
        assert kind.lost is not None
        named = {
            seq
            for each in costly
            if each.first_seq is not None and each.last_seq is not None
            for seq in range(each.first_seq, each.last_seq + 1)
        }
        assert named & {*kind.lost[1]}
        assert how == "halved" or named >= {*kind.lost[1]}


# --- whole log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["topics", "nothing"])
def test_a_directory_without_its_log_is_refused(kept: str, data: Path) -> None:
    """INV-REPLAY-WHOLE."""
    for name in ("meta", "wal", *(["topics"] if kept == "nothing" else [])):
        shutil.rmtree(data / name)
        (data / name).mkdir()
    before = tree(data)
    with pytest.raises(CorruptionError, match=r"no WAL file is left, though .*FORMAT says .*restore"):
        open_log(data, SETTINGS)
    with pytest.raises(CorruptionError, match="no WAL file is left"):
        open_view(data)
    assert "no WAL file is left" in " ".join(each.what for each in findings(data))
    assert tree(data) == before
    (data / "FORMAT").unlink()
    if kept == "topics":
        with pytest.raises(InvalidInputError, match=r"has no FORMAT: topics/00000001.*restore"):
            open_log(data, SETTINGS)


def test_an_unused_directory_opens_again(tmp_path: Path) -> None:
    for _ in range(2):
        with open_log(tmp_path / "data", SETTINGS) as log:
            assert log.topics() == []
    assert findings(tmp_path / "data") == []


def test_an_empty_directory_with_a_lock_is_new(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "LOCK").touch()
    with open_log(tmp_path / "data", SETTINGS) as log:
        assert log.topics() == []
        log.create_topic("events")
        assert log.topics() == ["events"]


# --- the end of the log ------------------------------------------------------------------------------------------


def _cuts(size: int) -> Iterator[int]:
    yield from (DATA_START, DATA_START + 64, DATA_START + 1_000, size // 4, size - 1)


@pytest.mark.parametrize("cut", [*_cuts(SETTINGS.wal_file_size)])
def test_a_truncated_log_is_refused_and_undoes_no_delete(cut: int, killed: Path, tmp_path: Path) -> None:
    """The newest WAL file of a killed process is truncated: opening notices its length."""
    with open_log(killed, SETTINGS) as log:
        log.delete("events", before_seq=20)
        again = shutil.copytree(killed, tmp_path / "again")
    newest = max((again / "wal").glob("*.wal"))
    os.truncate(newest, cut)
    before = tree(again)
    with pytest.raises(CorruptionError, match=f"{newest.name}: has {cut} bytes of the 65536 .*restore it"):
        open_log(again, SETTINGS)
    assert tree(again) == before


def test_a_log_file_that_only_the_older_snapshot_needs(tmp_path: Path) -> None:
    """The newest snapshot does not need it, and verification reports that the older one does."""
    data = tmp_path / "data"
    with open_log(data, SETTINGS) as log:
        log.create_topic("events")
        for _ in range(4):
            for _ in range(3):
                log.publish("events", [b"x" * 40_000])
            log.checkpoint()
        before = answer(log)
    oldest = min((data / "wal").glob("*.wal"))
    assert len(list((data / "wal").glob("*.wal"))) > 2
    oldest.unlink()
    assert any("is missing" in each.what for each in findings(data))
    with open_log(data, SETTINGS) as log:
        assert answer(log) == before
    newest = max((data / "meta").glob("*.meta"))
    newest.unlink()
    with pytest.raises(CorruptionError, match=r"the WAL file with address .* is missing.*restore"):
        open_log(data, SETTINGS)


def test_older_snapshots_are_refused(data: Path, tmp_path: Path) -> None:
    """A snapshot from before the log was trimmed cannot replace a lost one."""
    old = shutil.copytree(data / "meta", tmp_path / "meta")
    with open_log(data, SETTINGS) as log:
        for number in range(8):
            log.publish("events", [b"x" * 40_000])
            if number % 2:
                log.checkpoint()
    shutil.rmtree(data / "meta")
    shutil.copytree(old, data / "meta")
    before = tree(data)
    with pytest.raises(CorruptionError, match=r"the WAL file with address .* is missing.*restore"):
        open_log(data, SETTINGS)
    assert tree(data) == before
    assert any("is missing" in each.what for each in findings(data))

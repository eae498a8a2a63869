from __future__ import annotations

from pathlib import Path

import pytest

from alipes.gateway.fleet.endpoints import default_state_folder
from alipes.gateway.fleet.records import ProcessRecord, Records

ONE = ProcessRecord(17, "a-boot 42", "print")
TWO = ProcessRecord(18, "a-boot 43", "print", greeted=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "name"


def test_records_are_there_for_the_next_gateway_until_they_are_removed(folder: Path) -> None:
    first = Records(folder)
    first.claim()
    assert first.read() == {}
    first.write("cold-0", TWO)
    first.write("cold-0", ONE)
    first.write("a.b", TWO)
    first.release()
    assert sorted(path.name for path in (folder / "instances").iterdir()) == [
        "a.b.json",
        "cold-0.json",
    ]
    second = Records(folder)
    second.claim()
    assert second.read() == {"cold-0": ONE, "a.b": TWO}
    for name in ("cold-0", "a.b", "never-there"):
        second.remove(name)
    second.release()
    assert not folder.exists()


def test_what_another_keeps_there_stays(folder: Path) -> None:
    records = Records(folder)
    records.claim()
    (folder / "other").write_text("mine")
    records.release()
    assert [path.name for path in folder.iterdir()] == ["other"]


@pytest.mark.parametrize(
    "torn", [b"", b'{"pid": 17, "bir', b'{"pid": "17"}', b"[]", b'{"pid": 1, "birth": ""}', b"\xff"]
)
def test_a_file_that_is_no_record_is_told_and_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture, torn: bytes
) -> None:
    records = Records(folder)
    records.claim()
    records.write("whole", ONE)
    (folder / "instances" / "torn.json").write_bytes(torn)
    assert records.read() == {"whole": ONE}
    [line] = caplog.messages
    assert "torn.json is left out" in line
    # A process of that name takes its place.
    records.write("torn", TWO)
    assert records.read() == {"whole": ONE, "torn": TWO}
    records.release()


def test_a_write_that_was_cut_off_leaves_the_old_record(folder: Path) -> None:
    records = Records(folder)
    records.claim()
    records.write("cold-0", ONE)
    (folder / "instances" / ".new").write_bytes(b'{"pid')
    assert records.read() == {"cold-0": ONE}
    records.remove("cold-0")
    records.release()
    assert not folder.exists()


def test_a_record_that_cannot_be_written_is_only_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = Records(folder)
    records.claim()
    (folder / "instances" / ".new").mkdir()
    records.write("cold-0", ONE)
    assert "cold-0, pid 17: no later gateway will find it" in caplog.messages[0]


def test_a_folder_serves_one_gateway(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = Records(folder), Records(folder)
    first.claim()
    second.claim()
    assert (first.kept, second.kept) == (True, False)
    assert caplog.messages[0].endswith(": another gateway of this cluster file has it")
    second.write("cold-0", ONE)
    second.release()
    assert first.read() == {}
    first.write("cold-0", ONE)
    first.release()
    third = Records(folder)
    third.claim()
    assert third.read() == {"cold-0": ONE}
    third.release()


@pytest.mark.parametrize("inner", ["", "instances"])
def test_a_folder_that_others_can_use_keeps_nothing(
    folder: Path, inner: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / inner).mkdir(parents=True)
    (folder / inner).chmod(0o777)
    if inner:
        folder.chmod(0o700)
    records = Records(folder)
    records.claim()
    assert not records.kept
    assert "must belong to this user, with no other writing to them" in caplog.text


def test_a_folder_that_cannot_be_made_keeps_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    records = Records(tmp_path / "file" / "state")
    records.claim()
    assert not records.kept
    assert caplog.messages[0].startswith("instances will not outlive this gateway")
    assert "Not a directory; set `cache` or ALIPES_CACHE" in caplog.text


def test_without_a_folder_nothing_is_kept() -> None:
    records = Records(None)
    records.claim()
    records.write("cold-0", ONE)
    assert not records.kept
    assert records.read() == {}
    records.remove("cold-0")
    records.release()


def test_every_cluster_file_has_its_own_folder_under_every_path(tmp_path: Path) -> None:
    file, link = tmp_path / "a.yaml", tmp_path / "link.yaml"
    file.write_text("")
    link.symlink_to(file)
    found = default_state_folder(tmp_path, str(file))
    assert found.parent == tmp_path / "state"
    assert found == default_state_folder(tmp_path, str(link))
    assert found != default_state_folder(tmp_path, str(tmp_path / "b.yaml"))

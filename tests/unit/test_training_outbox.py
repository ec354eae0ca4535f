"""Publication of a backup: whole or not at all, and only what a restore can put back."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spothop.training import outbox as training_outbox

Rename = Callable[[str, str], None]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def save(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("weights")
    return path


def publish(path: str, work: Path, outbox: Path) -> None:
    meta = {"id": "0001-7", "name": os.path.basename(path), "path": path}
    training_outbox.publish(meta, job_dir=str(work), outbox=str(outbox))


def test_a_file_is_renamed_and_described(work: Path, outbox: Path) -> None:
    path = save(work / "out/ckpt.pt")
    inode = path.stat().st_ino
    publish("out/ckpt.pt", work, outbox)
    payload = outbox / "0001-7/payload/ckpt.pt"
    assert payload.stat().st_ino == inode
    assert not path.exists()
    assert json.loads((outbox / "0001-7/meta.json").read_text())["path"] == "out/ckpt.pt"


@pytest.mark.parametrize(("root", "part"), [("ckpt.pt", "ckpt.pt"), ("ckpt", "ckpt/deep/part")])
def test_another_file_system_means_copy_and_delete(
    work: Path, outbox: Path, monkeypatch: pytest.MonkeyPatch, root: str, part: str
) -> None:
    rename: Rename = os.rename

    def refuse(source: str, target: str) -> None:
        if source.startswith(str(work)):
            raise OSError(errno.EXDEV, "cross-device link")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    save(work / part)
    publish(root, work, outbox)
    assert (outbox / "0001-7/payload" / part).read_text() == "weights"
    assert list(work.iterdir()) == []


def test_a_full_disk_raises_and_leaves_the_checkpoint_and_no_debris(
    work: Path, outbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    path = save(work / "ckpt.pt")
    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="no space left"):
        publish("ckpt.pt", work, outbox)
    assert path.read_text() == "weights"
    assert list(outbox.iterdir()) == []


def test_an_interrupted_publication_is_whole_but_never_seen_as_a_backup(
    work: Path, outbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename: Rename = os.rename

    def killed(source: str, target: str) -> None:
        if ".tmp-" in os.path.basename(source):
            raise KeyboardInterrupt
        rename(source, target)

    save(work / "ckpt.pt")
    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        publish("ckpt.pt", work, outbox)
    assert [folder.name for folder in outbox.iterdir()] == [".tmp-0001-7"]
    assert (outbox / ".tmp-0001-7/payload/ckpt.pt").read_text() == "weights"


def test_the_description_is_on_disk_before_the_checkpoint_moves(
    work: Path, outbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    rename: Rename = os.rename

    def recorded(source: str, target: str) -> None:
        order.append(os.path.basename(source))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda fd: order.append("sync"))
    monkeypatch.setattr(os, "rename", recorded)
    save(work / "ckpt.pt")
    publish("ckpt.pt", work, outbox)
    assert order == ["sync", "ckpt.pt", ".tmp-0001-7"]


def test_where_a_path_lies_below_the_job_directory(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(work / "out/ckpt.pt")
    monkeypatch.chdir(work / "out")
    for path in ("ckpt.pt", work / "out/ckpt.pt", "../out/ckpt.pt", str(work) + "/out/./ckpt.pt"):
        assert training_outbox.locate(path, job_dir=str(work)) == "out/ckpt.pt"
    assert training_outbox.locate("../out/", job_dir=str(work)) == "out"


def test_a_linked_job_directory_is_the_same_one(work: Path, tmp_path: Path) -> None:
    save(work / "ckpt.pt")
    (tmp_path / "link").symlink_to(work)
    assert training_outbox.locate(tmp_path / "link/ckpt.pt", job_dir=str(work)) == "ckpt.pt"


def test_what_cannot_be_restored_is_refused_with_the_hint(work: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"save the checkpoint before backup\(\)"):
        training_outbox.locate(work / "missing.pt", job_dir=str(work))
    save(tmp_path / "elsewhere.pt")
    save(tmp_path / "work2/ckpt.pt")
    (work / "out").symlink_to(tmp_path)
    for path in (
        tmp_path / "elsewhere.pt",
        work / ".." / "elsewhere.pt",
        work / "out" / "elsewhere.pt",
        tmp_path / "work2/ckpt.pt",
        work,
    ):
        with pytest.raises(ValueError, match=r"not below the job directory .* relative path"):
            training_outbox.locate(path, job_dir=str(work))
    (work / "latest.pt").symlink_to(save(work / "ckpt.pt"))
    with pytest.raises(ValueError, match=r"symbolic link; pass .*ckpt\.pt"):
        training_outbox.locate(work / "latest.pt", job_dir=str(work))


def test_absolute_links_inside_a_directory_stay_right_after_the_move(work: Path) -> None:
    save(work / "ckpt/step-1/w")
    (work / "ckpt/sub").mkdir()
    (work / "ckpt/latest").symlink_to(work / "ckpt/step-1")
    (work / "ckpt/sub/w").symlink_to(work / "ckpt/step-1/w")
    (work / "ckpt/self").symlink_to(".")
    assert training_outbox.locate(work / "ckpt", job_dir=str(work)) == "ckpt"
    links = {name: os.readlink(work / "ckpt" / name) for name in ("latest", "sub/w", "self")}
    assert links == {"latest": "step-1", "sub/w": "../step-1/w", "self": "."}


@pytest.mark.parametrize("target", ["/etc", "/etc/hostname", "..", "nowhere", "bad"])
def test_links_that_cannot_be_saved_are_refused_by_backup_itself(work: Path, target: str) -> None:
    save(work / "ckpt/w")
    (work / "ckpt/bad").symlink_to(target)
    with pytest.raises(ValueError, match=r"ckpt/bad.*(leads out of|leads nowhere)"):
        training_outbox.locate(work / "ckpt", job_dir=str(work))
    assert (work / "ckpt/w").exists()


def test_pipes_in_a_directory_are_refused_by_backup_itself(work: Path) -> None:
    save(work / "ckpt/sub/w")
    os.mkfifo(work / "ckpt/sub/pipe")
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        training_outbox.locate(work / "ckpt", job_dir=str(work))

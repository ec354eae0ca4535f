"""Backups on their way from the training process to the agent: a folder each, published by rename.

    outbox/.tmp-<id>/meta.json        written and synced first
    outbox/.tmp-<id>/payload/<name>   the user's file or directory, renamed in (or copied)
    outbox/<id>/                      the rename that publishes; ids sort in order of acceptance

The agent finds backups in the folder; the pipe message only tells it to look there. So a full pipe
or a dead or restarted agent loses nothing. If the process is killed between the two renames, the
payload is whole, but stays unpublished. Standard library only: this module runs inside the user's
training process.
"""

from __future__ import annotations

import errno
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check_exists(path: str | os.PathLike[str]) -> None:
    """Raises FileNotFoundError when there is nothing to back up."""
    if not os.path.lexists(path):
        raise FileNotFoundError(
            errno.ENOENT,
            "backup(path=...): no such file or directory; save the checkpoint before backup()",
            os.fspath(path),
        )


def locate(path: str | os.PathLike[str], *, job_dir: str) -> str:
    """Where `path` lies below the job directory (a real path); a restore puts it back there.

    Raises FileNotFoundError when there is nothing, ValueError when it is outside the job directory,
    the job directory itself, or a symbolic link (moving the link would leave its target behind),
    and for a directory that holds what cannot be saved (see `_mend_links`).
    """
    check_exists(path)
    parent, name = os.path.split(os.path.abspath(path))
    absolute = os.path.join(os.path.realpath(parent), name)
    if os.path.islink(absolute):
        raise ValueError(
            f"backup(path={os.fspath(path)!r}): a symbolic link;"
            f" pass {os.path.realpath(absolute)!r}"
        )
    if not absolute.startswith(job_dir + os.sep):
        raise ValueError(
            f"backup(path={os.fspath(path)!r}): not below the job directory {job_dir}; save to a"
            " relative path, so that a restore can put it back at the same place on another VM"
        )
    if os.path.isdir(absolute):
        _mend_links(absolute)
    relative = os.path.relpath(absolute, job_dir)
    try:
        relative.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"backup(path={os.fspath(path)!r}): the name is not UTF-8; rename it"
        ) from None
    return relative


def _mend_links(top: str) -> None:
    """Make a directory fit to be moved: links to places inside it that would lead elsewhere
    from another place become relative ones.

    Raises ValueError for what could not be saved at all, now, while the script still has the data:
    links that lead outside or nowhere, pipes, sockets and devices.
    """
    folders = [top]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    _mend_link(entry.path, top)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise ValueError(
                        f"backup(): {entry.path!r} is neither a file nor a directory; remove it, or"
                        " keep it outside the checkpoint"
                    )


def _mend_link(link: str, top: str) -> None:
    target = os.readlink(link)
    real = os.path.realpath(link)
    if not os.path.exists(real):
        raise ValueError(f"backup(): the link {link!r} leads nowhere ({target!r}); remove it")
    if real != top and not real.startswith(top + os.sep):
        raise ValueError(
            f"backup(): the link {link!r} leads out of the checkpoint, to {target!r}; copy the file"
            " into it instead"
        )
    if os.path.isabs(target) or ".." in target.split("/"):  # it may lead out and in again
        os.unlink(link)
        os.symlink(os.path.relpath(real, os.path.dirname(link)), link)


def publish(meta: dict[str, Any], *, job_dir: str, outbox: str) -> None:
    """Move `meta["path"]` (file or directory) into the outbox, in one piece or not at all.

    Raises OSError when the disk refuses (full, read-only); the source is then where it was.
    """
    source = os.path.join(job_dir, meta["path"])
    aside = os.path.join(outbox, f".tmp-{meta['id']}")
    payload = os.path.join(aside, "payload")
    os.makedirs(payload)
    try:
        _write_synced(os.path.join(aside, "meta.json"), json.dumps(meta).encode())
        copied = _move(source, os.path.join(payload, meta["name"]))
    except OSError:  # only these: after any other one the source may already be in there
        _remove(aside)
        raise
    os.rename(aside, os.path.join(outbox, meta["id"]))
    if copied:
        _remove(source)


def _move(source: str, target: str) -> bool:
    """Rename; across file systems copy instead, and answer that `source` is still there."""
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return False
    import shutil  # 6 ms that only a job directory on two disks pays

    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)
    return True


def _remove(path: str) -> None:
    import shutil

    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def _write_synced(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

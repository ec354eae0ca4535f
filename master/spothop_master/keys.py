"""The master key: one file from which every other key of the master is derived.

What it guarantees: nothing is ever encrypted with a key that the next start would not have, and
what was encrypted with another key is an error that says so, never garbage. Rules:

1. Each line of the file is one master key: 32 random bytes in base64 (`openssl rand -base64 32`
   makes one); empty lines and lines that begin with # do not count. The first one makes everything
   new; all of them open what is there. So a rotation is a new first line.
2. No master key is used itself. HKDF (RFC 5869) makes one key for each purpose out of it: a value
   of one purpose says nothing about another.
3. A key has a short public id, which stands beside whatever was made with it. A database that knows
   ids gets no new key file: somebody has lost the old one, and has to say so.

Masters that share a database share the keys: each is given the same file (`key_file`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from spothop_master import home

SIZE = 32
"""Bytes of a master key, and of what is derived from it."""

_ID, _AT_REST, _JOIN = (b"spothop/1/id", b"spothop/1/at-rest", b"spothop/1/join-token")
_OTHERS = 0o007
_HEADER = """\
# spothop's master key. Keep a copy of this file, apart from those of the database: what is made
# with it is lost without it. docs/security.md says more.
"""
_ROTATING = """\
# A rotation is under way: once all is encrypted with the first key, the others go.
"""


class KeyFileError(Exception):
    """The key file cannot be used; the message says why and the way out."""


class Keys:
    """What is derived from the master keys of one file. Nothing is read before `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._masters: Sequence[bytes] = ()

    @classmethod
    def of(cls, *masters: bytes) -> Keys:
        """Of these master keys, newest first, and of no file."""
        keys = cls(Path(os.devnull))
        keys._masters = masters
        return keys

    def open(self, in_use: Collection[str] = ()) -> None:
        """Read the file, or make it at the first start. `in_use` are the ids of the keys that the
        database needs. Harmless when repeated. Raises `KeyFileError`."""
        masters = _read(self.path)
        if masters is None and not in_use:
            masters = _made(self.path)
        found = [key_id(master) for master in masters or ()]
        if missing := sorted(set(in_use) - set(found)):
            has = f"has only {', '.join(found)}" if found else "is not there"
            raise KeyFileError(
                f"key_file = {self.path}: the database has values that were encrypted with key "
                f"{', '.join(missing)}, and this file {has}; put the right file in its place (one "
                "more master needs a copy of the first one's), name it with "
                "SPOTHOP_MASTER_KEY_FILE, or give these values up with "
                f"`spothop master --forget-key {missing[0]}`"
            )
        self._masters = masters or ()

    @property
    def ids(self) -> list[str]:
        """Newest first."""
        return [key_id(master) for master in self._masters]

    @property
    def newest_id(self) -> str:
        """Of the key that encrypts. Raises `KeyFileError` before `open`."""
        return key_id(self._newest)

    def add(self) -> str:
        """A new first key, in the file too; its id. Raises `KeyFileError`."""
        masters = [secrets.token_bytes(SIZE), *self._masters]
        _write(self.path, masters, header=_HEADER + _ROTATING)
        self._masters = masters
        return self.ids[0]

    @property
    def rotating(self) -> bool:
        """`add` has written this file, and nobody has said since that the others may go."""
        try:
            return _ROTATING in self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return False

    def keep_newest(self) -> None:
        """Nothing is encrypted with the others any more: they go. Raises `KeyFileError`."""
        masters = self._masters[:1]
        _write(self.path, masters)
        self._masters = masters

    def at_rest(self) -> dict[str, bytes]:
        """By id, newest first: keys of 32 bytes for what is encrypted in the database."""
        return {key_id(master): _derive(master, _AT_REST) for master in self._masters}

    def join_token(self, vm_id: str) -> str:
        """The token with which this VM joins, always the same: a launch that is repeated says the
        same. 256 bits that nobody guesses who has no master key."""
        return _join_token(self._newest, vm_id)

    @property
    def _newest(self) -> bytes:
        if not self._masters:
            raise KeyFileError(f"key_file = {self.path}: not read yet; open it first")
        return self._masters[0]


def key_id(master: bytes) -> str:
    """Its public name: eight hexadecimal digits, which tell nothing about it."""
    return _derive(master, _ID)[:4].hex()


def _derive(master: bytes, purpose: bytes) -> bytes:
    """HKDF with SHA-256 and without salt: the input is uniformly random already (RFC 5869, 3.1)."""
    return HKDF(algorithm=SHA256(), length=SIZE, salt=None, info=purpose).derive(master)


def _join_token(master: bytes, vm_id: str) -> str:
    mac = hmac.digest(_derive(master, _JOIN), vm_id.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def _read(path: Path) -> list[bytes] | None:
    """Newest first; None where there is no file."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise KeyFileError(f"key_file = {path}: cannot be read ({reason}); see `ls -l`") from None
    if mode & _OTHERS:
        raise KeyFileError(
            f"key_file = {path}: everybody on this machine may open it; `chmod 600 {path}`"
        )
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), start=1)]
    masters = [_decoded(line, path, n) for n, line in lines if line and not line.startswith("#")]
    if not masters:
        raise KeyFileError(f"key_file = {path}: it holds no key; put the right file in its place")
    return list(dict.fromkeys(masters))


def _decoded(line: str, path: Path, number: int) -> bytes:
    """The message never quotes the line: it may be a key with a typing error."""
    try:
        master = base64.b64decode(
            line, altchars=b"-_" if set("-_") & set(line) else None, validate=True
        )
    except (binascii.Error, ValueError):
        master = b""
    if len(master) != SIZE:
        raise KeyFileError(
            f"key_file = {path}: line {number} is no key, which is {SIZE} bytes in base64 (44 "
            "characters, as `openssl rand -base64 32` writes them); put the right file in its place"
        )
    return master


def _made(path: Path) -> list[bytes] | None:
    """A first key; that of another master where one that shares the file is faster."""
    masters = [secrets.token_bytes(SIZE)]
    try:
        _write(path, masters, new=True)
    except FileExistsError:
        return _read(path)
    return masters


def _write(
    path: Path, masters: Sequence[bytes], *, new: bool = False, header: str = _HEADER
) -> None:
    lines = "".join(f"{base64.b64encode(master).decode()}\n" for master in masters)
    try:
        home.publish(path, header + lines, mode=0o600, new=new)
    except FileExistsError:
        raise
    except OSError as error:
        raise KeyFileError(
            f"key_file = {path}: cannot be written ({error.strerror}); make a folder that the "
            "master may write, or put a key there: `openssl rand -base64 32`, mode 600"
        ) from None

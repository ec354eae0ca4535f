"""What users keep secret in their job files, encrypted in the row of the job.

What it must guarantee: who has the database, a copy of it or its disk, and not the master's key
file, reads no value of `env`, no credentials of a storage, and no user name, password or signature
in a URL; and a value that cannot be decrypted is an error, never another value.

1. `jobs.spec` holds the job file as a viewer sees it (`storageoptions.masked_spec`). So whoever
   decides, lists or shows needs no key, and has no secret to leak.
2. `jobs.sealed` holds what is masked there: the values with their places in the file, encrypted
   with AES-GCM under a key of the master (`keys`). `whole` puts them back; that is for the job's
   agent, and for those who may see the values.
3. The job's id is authenticated with it: a sealed value that was copied to another row is refused,
   so nobody who can write the database has a job of their own print somebody else's secrets.
4. Ids of the keys in use are in a table, written with the first value that each encrypts: by these
   a lost key file is found at the start, before a new one is made.

None is a row that an earlier release wrote; `renew` encrypts it at the start of the master, and
also what an older key has encrypted. Empty is one that keeps nothing secret.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import ColumnElement, and_, bindparam, delete, or_, select, update
from sqlalchemy.orm import Session

from spothop import storageoptions
from spothop_master.keys import KeyFileError, Keys
from spothop_master.store import dialects
from spothop_master.store.schema import Installation, Job, SealingKey

KEYS = "spothop_keys"
"""The master's keys in a session's `info`; `Database` puts them there."""

AUTHORITY = b"installation/ca_key"
"""Where the key of the masters' certificate authority belongs."""

_FORM = "1"
"""First in a sealed text: `<form>.<key id>.<nonce and ciphertext, base64>`."""
_NONCE = 12
"""Bytes, as NIST SP 800-38D recommends. Random ones are safe for 2**32 values of one key."""
_AT_ONCE = 200


_RENEW = (
    update(Job.__table__)  # type: ignore[arg-type]  # not the model: nothing is to be told of it
    .where(Job.id == bindparam("which"))
    .values(spec=bindparam("shown"), sealed=bindparam("secret"))
)


class Unreadable(Exception):
    """A sealed value cannot be decrypted; the message says why and the way out."""


def seal(session: Session, job_id: str, spec: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The job file without its secrets, and these encrypted: the columns `spec` and `sealed`.
    Raises `KeyFileError` when there are some and no key was opened."""
    shown = storageoptions.masked_spec(spec)
    hidden = list(_hidden(spec, shown))
    if not hidden:
        return shown, ""
    return shown, seal_text(session, json.dumps(hidden), _row(job_id))


def seal_text(session: Session, text: str, where: bytes) -> str:
    """Encrypted with the newest key; `where` it belongs is authenticated with it. Raises
    `KeyFileError`."""
    newest = _keys(session).newest_id
    if session.get(SealingKey, newest) is None:
        session.add(SealingKey(id=newest))
        session.flush()
    key, nonce = _keys(session).at_rest()[newest], secrets.token_bytes(_NONCE)
    sealed = nonce + AESGCM(key).encrypt(nonce, text.encode(), where)
    return f"{_FORM}.{newest}.{base64.b64encode(sealed).decode()}"


def unseal_text(session: Session, sealed: str, where: bytes, what: str) -> str:
    """As it was. Raises `Unreadable`, which says `what` cannot be read."""
    return _plain(_keys(session), sealed, where, what, "put it back there")


def is_sealed_with(sealed: str, key_id: str) -> bool:
    return sealed.startswith(f"{_FORM}.{key_id}.")


def whole(session: Session, job: Job) -> dict[str, Any]:
    """The job file as it was submitted. Raises `Unreadable`."""
    return _whole(session, job.id, job.spec, job.sealed)


def keys_in_use(session: Session) -> list[str]:
    """Ids of those with which something was encrypted."""
    return list(session.scalars(select(SealingKey.id).order_by(SealingKey.id)))


def newest_key(session: Session) -> str:
    """Id of the one that encrypts. Raises `KeyFileError`."""
    return _keys(session).newest_id


def renew(session: Session, after: str = "") -> tuple[int, str | None]:
    """Encrypt rows that an earlier release wrote, or another key than the newest, a portion at a
    time: how many it were, and `after` for the next portion; None when there is no more.

    What cannot be read stays as it is.
    """
    newest = _keys(session).newest_id
    which: ColumnElement[bool] = Job.sealed.is_(None)
    if set(keys_in_use(session)) - {newest}:  # else only the rows of the index are looked at
        which = or_(which, and_(Job.sealed != "", Job.sealed.not_like(f"{_FORM}.{newest}.%")))
    query = select(Job.id, Job.spec, Job.sealed).where(which, Job.id > after)
    found = session.execute(query.order_by(Job.id).limit(_AT_ONCE)).all()
    values = []
    for row in found:
        try:
            spec, sealed = seal(session, row.id, _whole(session, row.id, row.spec, row.sealed))
        except Unreadable:
            continue
        values.append({"which": row.id, "shown": spec, "secret": sealed})
    if values:
        with dialects.overwritten(session):
            session.connection().execute(_RENEW, values)
    if len(found) == _AT_ONCE:
        return len(values), found[-1].id
    for each in session.scalars(select(Installation).where(Installation.ca_key.is_not(None))):
        if each.ca_key and not is_sealed_with(each.ca_key, newest):
            with suppress(Unreadable):
                plain = unseal_text(session, each.ca_key, AUTHORITY, "the authority")
                each.ca_key = seal_text(session, plain, AUTHORITY)
    session.flush()
    session.execute(delete(SealingKey).where(SealingKey.id != newest))
    return len(values), None


def forget(session: Session, key_id: str) -> list[str]:
    """Give up what this key has encrypted; ids of the jobs that this concerns. The values stay
    where they are: with the key back in the file they are read again."""
    session.execute(delete(SealingKey).where(SealingKey.id == key_id))
    mine = Job.sealed.like(f"{_FORM}.{key_id}.%")
    return list(session.scalars(select(Job.id).where(mine).order_by(Job.id)))


def _keys(session: Session) -> Keys:
    keys = session.info.get(KEYS)
    if not isinstance(keys, Keys):
        raise KeyFileError("this database was opened without keys; give it those of the master")
    return keys


def _whole(
    session: Session, job_id: str, spec: Mapping[str, Any], sealed: str | None
) -> dict[str, Any]:
    found = copy.deepcopy(dict(spec))
    for path, value in _unsealed(_keys(session), job_id, sealed) if sealed else ():
        inner = found
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
    return found


def _unsealed(keys: Keys, job_id: str, sealed: str) -> list[tuple[list[str], Any]]:
    what = f"the secrets of job {job_id}"
    way_out = "put it back there, or cancel the job and submit it again"
    values: list[tuple[list[str], Any]] = json.loads(
        _plain(keys, sealed, _row(job_id), what, way_out)
    )
    return values


def _plain(keys: Keys, sealed: str, where: bytes, what: str, way_out: str) -> str:
    form, _, rest = sealed.partition(".")
    key_id, _, text = rest.partition(".")
    key = keys.at_rest().get(key_id)
    if key is None or form != _FORM:
        raise Unreadable(
            f"{what} were encrypted with key {key_id}, which is not in the master's key file; "
            f"{way_out}"
        )
    try:
        found = base64.b64decode(text, validate=True)
        return AESGCM(key).decrypt(found[:_NONCE], found[_NONCE:], where).decode()
    except (InvalidTag, binascii.Error, ValueError):
        raise Unreadable(
            f"{what} are damaged, or of another row; cancel the job and submit it again, or "
            "restore the database from a copy"
        ) from None


def _row(job_id: str) -> bytes:
    """What is authenticated with a value: where it belongs."""
    return f"jobs/{job_id}/sealed".encode()


def _hidden(value: Any, shown: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What is not shown as it is, with its place."""
    if isinstance(value, Mapping) and isinstance(shown, Mapping):
        for name, inner in value.items():
            yield from _hidden(inner, shown[name], *path, name)
    elif value != shown:
        yield path, value

"""Who has uploaded which code bundle.

A bundle is named by its content, and its name is no secret: it stands in job files, logs and URLs.
So the name alone gives nothing. Whoever has sent the bytes, or has a job with them, may run them.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from spothop_master.store.schema import BundleUpload, Job


def record(session: Session, sha256: str, *, user_id: int, now: datetime) -> None:
    """The user has sent all of it. Harmless when repeated."""
    if session.get(BundleUpload, (sha256, user_id)) is None:
        session.add(BundleUpload(sha256=sha256, user_id=user_id, uploaded_at=now))


def has(session: Session, sha256: str, *, user_id: int) -> bool:
    """Whether the user has sent it, or had, before that was written down, a job with it."""
    if session.get(BundleUpload, (sha256, user_id)) is not None:
        return True
    own = select(Job.id).where(Job.bundle == sha256, Job.owner_id == user_id).limit(1)
    return session.scalar(own) is not None

"""What `with` gives a script: a step, and a save. Standard library only."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from types import TracebackType

    from spothop.training.requests import Begun
    from spothop.training.session import Session
    from spothop.training.shards import Shard


class StepContext:
    """The reusable object behind step_context(): entering and leaving it allocates nothing."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.enter_step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:  # a step that raised is not a completed one
            self._session.exit_step()


class Save:
    """One save: `with sp.saving() as save:`. Its `backup` may be called later, in any thread."""

    __slots__ = ("_begun", "_handed_over", "_session", "_shard")

    def __init__(self, session: Session, begun: Begun | None, shard: Shard = False) -> None:
        self._shard = shard
        self._session = session
        self._begun = begun  # None off-cluster
        self._handed_over = False

    def __enter__(self) -> Save:
        self._session.enter_save(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.leave_save(self._begun)
        if kind is not None and not self._handed_over and self._begun is not None:
            self._session.save_failed(self._begun)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Hand over what this save wrote; raises as `Session.backup` does."""
        try:
            self._session.hand_over(path, self._begun, self._shard)
        except (OSError, ValueError):
            if self._begun is not None and not self._handed_over:
                self._session.save_failed(self._begun)
            raise
        self._handed_over = True

"""The life of one notice as a table: the only place that knows what may follow what. Pure.

    seen -> requested -> answered -> committed -> acknowledged

What it guarantees: the cloud is told that it may take the VM only after a backup that holds what
there was at the notice has become a checkpoint, or when there is nothing (more) that could become
one. `committed` lasts while training goes on: the cloud is told when the process is over, which it
is once the replacement takes over, or shortly before the deadline. Where the way is another:

- `unrequested`: no save was asked for, because no process runs or the policy says that none fits.
  A backup that is handed over later still answers the notice.
- `nothing_left`: the process never started or is over, and each of its backups is committed or
  given up.
- `unacknowledged`: the cloud has no such call, or refused it. The VM lives to its deadline.

Each state is on the disk before its effect is built upon, so that an agent that is started again
goes on: from `seen` it decides anew, from `requested` it repeats the same request, from `answered`
it only waits for the commit, and from `committed` it only tells the cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from spothop.statemachine import Machine


class NoticeState(str, Enum):
    SEEN = "seen"  # kept on the disk; nothing was decided yet
    REQUESTED = "requested"  # the training process was asked for an emergency save
    UNREQUESTED = "unrequested"
    ANSWERED = "answered"  # it handed over a backup that holds what there was at the notice
    COMMITTED = "committed"  # such a backup is a checkpoint
    NOTHING_LEFT = "nothing_left"
    ACKNOWLEDGED = "acknowledged"  # the cloud was told that it may take the VM
    UNACKNOWLEDGED = "unacknowledged"


class NoticeEvent(str, Enum):
    REQUEST = "request"
    DECLINE = "decline"  # no save is asked for
    ANSWER = "answer"
    COMMIT = "commit"
    FINISH = "finish"  # the attempt is over: nothing more can be committed
    ACKNOWLEDGE = "acknowledge"
    REFUSE = "refuse"  # the cloud has no acknowledgement, or did not take ours


_CLOSES = {
    NoticeEvent.COMMIT: NoticeState.COMMITTED,
    NoticeEvent.FINISH: NoticeState.NOTHING_LEFT,
}
_TELLS = {
    NoticeEvent.ACKNOWLEDGE: NoticeState.ACKNOWLEDGED,
    NoticeEvent.REFUSE: NoticeState.UNACKNOWLEDGED,
}

TRANSITIONS: Mapping[NoticeState, Mapping[NoticeEvent, NoticeState]] = {
    NoticeState.SEEN: {
        NoticeEvent.REQUEST: NoticeState.REQUESTED,
        NoticeEvent.DECLINE: NoticeState.UNREQUESTED,
        # An earlier agent sent the request and died before it had written that down.
        NoticeEvent.ANSWER: NoticeState.ANSWERED,
        **_CLOSES,
    },
    NoticeState.REQUESTED: {NoticeEvent.ANSWER: NoticeState.ANSWERED, **_CLOSES},
    NoticeState.UNREQUESTED: {NoticeEvent.ANSWER: NoticeState.ANSWERED, **_CLOSES},
    NoticeState.ANSWERED: _CLOSES,
    NoticeState.COMMITTED: _TELLS,
    NoticeState.NOTHING_LEFT: _TELLS,
    NoticeState.ACKNOWLEDGED: {},
    NoticeState.UNACKNOWLEDGED: {},
}

NOTICES = Machine(TRANSITIONS)

SAVED = frozenset({NoticeState.COMMITTED, NoticeState.UNACKNOWLEDGED})
"""What there was at the notice is a checkpoint, and the cloud was not told that it may take the VM:
what is trained from now on can still be saved."""

COVERED = NOTICES.sources(NoticeEvent.ACKNOWLEDGE)
"""Nothing (more) is to be saved, and the cloud is not told yet."""

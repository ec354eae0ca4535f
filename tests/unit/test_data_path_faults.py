"""Whatever storage, disk, cloud and agent do, no accepted save is lost (I1, I2, I5, I12).

Random scripts of faults against one VM of a job; `fakes.job_under_faults` says what is real and
what must hold. A failure prints the shortest script that Hypothesis finds, and its story.
"""

from __future__ import annotations

import errno

from hypothesis import given, note
from hypothesis import strategies as st

from fakes.fault_script import (
    DiskFails,
    End,
    Event,
    Fails,
    KillAgent,
    MasterAway,
    Save,
    TakeBack,
    TakeOver,
)
from fakes.faulty_store import Again, Behind, How, Kill, Late, Lost, Refuse, Short, Slow, Stall
from fakes.job_under_faults import live
from fakes.saving_script import DATA
from spothop_agent.chaos import POINTS
from support.examples import examples

REFUSALS = [
    Refuse(500, "InternalError"),
    Refuse(503, "SlowDown"),
    Refuse(503, ""),
    Refuse(429, ""),
    Refuse(400, "RequestTimeout"),
    Refuse(400, "ExpiredToken"),
    Refuse(400, "BadDigest"),
    Refuse(400, ""),
    Refuse(401, ""),
    Refuse(403, "RequestTimeTooSkewed"),
    Refuse(403, "AccessDenied"),
    Refuse(403, ""),
    Refuse(404, "NoSuchBucket"),
    Refuse(404, "NoSuchUpload"),
    Refuse(404, "NoSuchKey"),
    Refuse(404, ""),
    Refuse(405, ""),
    Refuse(409, "OperationAborted"),
    Refuse(409, "ConditionalRequestConflict"),
    Refuse(409, ""),
    Refuse(412, "PreconditionFailed"),
    Refuse(418, "NobodyHasEverHeardOfThis"),
]
SECONDS = st.sampled_from([0.2, 1.0, 5.0, 20.0, 90.0])
GRACE_S = st.sampled_from([3.0, 10.0, 30.0, 120.0])
TIMES = st.sampled_from([1, 1, 1, 2, 3, 8])
ANYWHERE: st.SearchStrategy[How] = st.one_of(
    st.sampled_from(REFUSALS),
    st.builds(Slow, SECONDS),
    st.builds(Stall, SECONDS),
    st.sampled_from([Kill(done=False), Kill(done=True)]),
)
WRITING: st.SearchStrategy[How] = st.one_of(
    ANYWHERE,
    st.just(Lost()),
    st.just(Again()),
    st.builds(Late, SECONDS),
    st.builds(Stall, SECONDS, done=st.just(True)),
)
SENDING: st.SearchStrategy[How] = st.one_of(WRITING, st.builds(Short, st.sampled_from([0, 100])))
READING: st.SearchStrategy[How] = st.one_of(ANYWHERE, st.builds(Short, st.sampled_from([0, 50])))
LISTING: st.SearchStrategy[How] = st.one_of(ANYWHERE, st.builds(Behind, st.sampled_from([1, 2])))

FAILS = st.one_of(
    st.builds(Fails, st.just("create"), WRITING, TIMES),
    st.builds(Fails, st.just("send"), SENDING, TIMES),
    st.builds(Fails, st.just("delete"), WRITING, TIMES),
    st.builds(Fails, st.just("get"), READING, TIMES),
    st.builds(Fails, st.just("scan"), LISTING, TIMES),
    st.builds(Fails, st.just("any"), ANYWHERE, TIMES),
)
DISK = st.builds(
    DiskFails,
    st.sampled_from([errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE]),
    st.sampled_from([1, 2, 5]),
    st.integers(0, 12),
)
SAVE = st.builds(Save, st.sampled_from([0.0, 0.0, 4.0, 10.0]))
KILL = st.builds(KillAgent, st.sampled_from([None, *POINTS]))
ACTION = st.one_of(SAVE, SAVE, FAILS, FAILS, FAILS, DISK, KILL, st.builds(MasterAway, SECONDS))
AFTER_S = st.sampled_from([0.0, 0.1, 0.5, 2.0, 5.0])
BEGINS = st.lists(st.builds(Event, AFTER_S, ACTION), min_size=3, max_size=10)
ENDS = st.one_of(
    st.just([]),
    st.builds(
        lambda left_s, after: [TakeBack(left_s), *after], GRACE_S, st.lists(ACTION, max_size=4)
    ),
    st.builds(lambda after: [TakeOver(), *after], st.lists(ACTION, max_size=4)),
    st.builds(lambda after: [End(), *after], st.lists(ACTION, max_size=4)),
)
SCRIPTS = st.builds(
    lambda begins, ends, after_s: [*begins, *(Event(after_s, do) for do in ends)],
    BEGINS,
    ENDS,
    AFTER_S,
)


@given(SCRIPTS, st.sampled_from([0, DATA // 2]))
@examples(50)
def test_no_accepted_save_is_lost(script: list[Event], part: int) -> None:
    note(f"live({script}, part={part})")
    live(script, part=part)


def test_a_commit_whose_answer_was_lost_is_not_overtaken_by_an_older_save() -> None:
    """Step 6 is in the chain, but each answer about it fails until the turn passes to step 1, which
    was handed over late. A restore would take step 1."""
    live(
        [
            Event(0.0, Save(late_s=4.0)),
            Event(2.0, Fails("scan", Refuse(403, "RequestTimeTooSkewed"), 3)),
            Event(0.0, Fails("create", Again(), 8)),
            Event(0.0, Fails("get", Stall(1.0))),
            Event(20.0, MasterAway(1.0)),  # until here the faults wait for their requests
        ],
        part=100,
    )


def test_an_attempt_that_is_shut_out_while_its_fence_is_unclear_ends() -> None:
    """Its fence is in the chain, each answer about it fails, and a newer attempt takes over."""
    live(
        [
            Event(0.0, Fails("create", Lost())),
            Event(0.0, Fails("get", Refuse(409, "OperationAborted"), 3)),
            Event(2.5, TakeOver()),
        ],
        part=100,
    )

"""Ends of attempts and of VMs: I7 and I8 as pure functions; orphans beside them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.wire import (
    EndReason,
    ExitedReport,
    Pool,
    PreparationFailedReport,
    VmReason,
    VmState,
)
from spothop_master.core import orphans, verdict
from spothop_master.core.evidence import EndCause, EndEvidence, Evidence, ending
from spothop_master.core.orphans import HoldLimits, Listed, Orphan, Written
from support.examples import examples

T0 = datetime(2030, 1, 1, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("fields", "noticed", "stop", "expected"),
    [
        ({"code": 0}, False, None, EndReason.SUCCEEDED),
        ({"code": 0}, True, None, EndReason.PREEMPTED),
        ({"code": 0, "done": True}, True, None, EndReason.SUCCEEDED),
        ({"code": 0, "done": True, "uncommitted": 1}, False, None, EndReason.INFRASTRUCTURE),
        ({"code": 0, "done": True, "outputs_lost": "why"}, False, None, EndReason.INFRASTRUCTURE),
        ({"code": 0, "done": True}, False, EndReason.CANCELLED, EndReason.SUCCEEDED),
        ({"signal": 15, "done": True, "hang": True}, False, None, EndReason.SUCCEEDED),
        (
            {"signal": 15, "done": True, "hang": True, "uncommitted": 1},
            False,
            None,
            EndReason.INFRASTRUCTURE,
        ),
        ({"code": 0, "stopped": True}, False, EndReason.CANCELLED, EndReason.CANCELLED),
        ({"code": 0, "stopped": True}, True, EndReason.PAUSED, EndReason.PAUSED),
        ({"code": 0}, False, EndReason.PAUSED, EndReason.PAUSED),
        ({"signal": 9, "stopped": True}, False, EndReason.HANG, EndReason.HANG),
        ({"code": 1}, False, None, EndReason.USER_FAILURE),
        ({"code": 1}, True, None, EndReason.USER_FAILURE),
        ({"code": 1}, False, EndReason.CANCELLED, EndReason.USER_FAILURE),
        ({"signal": 15}, True, None, EndReason.PREEMPTED),
        ({"code": 143}, True, None, EndReason.PREEMPTED),
        ({"code": 137}, True, None, EndReason.PREEMPTED),
        ({"signal": 9}, True, None, EndReason.PREEMPTED),
        ({"code": 137}, False, None, EndReason.USER_FAILURE),
        ({"code": 138}, True, None, EndReason.USER_FAILURE),
        ({"signal": 15}, False, None, EndReason.USER_FAILURE),
        ({"signal": 9, "out_of_memory": True}, True, None, EndReason.OUT_OF_MEMORY),
        ({"signal": 9, "stopped": True, "hang": True}, False, None, EndReason.HANG),
        ({"signal": 9, "stopped": True, "hang": True}, True, None, EndReason.PREEMPTED),
        (
            {"signal": 9, "stopped": True, "hang": True},
            False,
            EndReason.CANCELLED,
            EndReason.CANCELLED,
        ),
        ({"stopped": True}, True, None, EndReason.PREEMPTED),
        ({"stopped": True}, False, None, EndReason.INFRASTRUCTURE),
    ],
)
def test_how_a_process_ended(
    fields: dict[str, object], noticed: bool, stop: EndReason | None, expected: EndReason
) -> None:
    report = ExitedReport.model_validate(fields)
    assert verdict.of_exit(report, noticed=noticed, stop_wanted=stop).reason is expected


@given(
    code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 31),
    done=st.booleans(),
    stopped=st.booleans(),
    uncommitted=st.integers(0, 2),
    noticed=st.booleans(),
    stop=st.none() | st.sampled_from([EndReason.CANCELLED, EndReason.PAUSED, EndReason.HANG]),
)
@examples(100)
def test_success_needs_code_0_and_all_backups_and_after_a_notice_done(
    code: int | None,
    signal: int | None,
    done: bool,
    stopped: bool,
    uncommitted: int,
    noticed: bool,
    stop: EndReason | None,
) -> None:
    report = ExitedReport(
        code=code, signal=signal, done=done, stopped=stopped, uncommitted=uncommitted
    )
    found = verdict.of_exit(report, noticed=noticed, stop_wanted=stop)
    if found.reason is EndReason.SUCCEEDED:
        assert (code, uncommitted) == (0, 0)
        assert done or not noticed
    assert found.text


def test_a_preparation_that_a_preemption_broke_is_nobodys_failure() -> None:
    report = PreparationFailedReport(phase="setup", message="killed", user=True)
    assert verdict.of_preparation(report, noticed=False).reason is EndReason.USER_FAILURE
    assert verdict.of_preparation(report, noticed=True).reason is EndReason.PREEMPTED


def days(**given: object) -> EndEvidence:
    fields: dict[str, object] = {
        "running_at": at(0),
        "notice_at": None,
        "deadline_at": None,
        "ours": None,
        "cause": None,
        "cloud_ended_at": at(100),
        "last_contact_at": at(90),
        "now": at(101),
        **given,
    }
    return EndEvidence(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_", "reason", "evidence", "life_s", "censored"),
    [
        ({"notice_at": at(70), "cause": EndCause.FAILED}, VmReason.PREEMPTED, "notice", 100, False),
        (
            {"notice_at": at(70), "deadline_at": at(110), "ours": VmReason.RELEASED},
            VmReason.PREEMPTED,
            "notice",
            110,
            False,
        ),
        ({"cause": EndCause.PREEMPTED}, VmReason.PREEMPTED, "cloud", 100, False),
        (
            {"cause": EndCause.PREEMPTED, "ours": VmReason.AGENT_LOST},
            VmReason.PREEMPTED,
            "cloud",
            100,
            False,
        ),
        ({"ours": VmReason.AGENT_LOST}, VmReason.AGENT_LOST, "silence", 90, True),
        (
            {"ours": VmReason.RELEASED, "cause": EndCause.TERMINATED},
            VmReason.RELEASED,
            "released",
            100,
            True,
        ),
        ({"cause": EndCause.FAILED}, VmReason.FAILED, "cloud", 100, True),
        ({"cause": EndCause.TERMINATED}, VmReason.FAILED, "cloud", 100, True),
        ({"cause": EndCause.UNKNOWN}, VmReason.AGENT_LOST, "silence", 90, True),
        ({"cause": None, "cloud_ended_at": None}, VmReason.AGENT_LOST, "silence", 90, True),
    ],
)
def test_evidence_is_ranked(
    given_: dict[str, object], reason: VmReason, evidence: str, life_s: float, censored: bool
) -> None:
    end = ending(days(**given_))
    assert (end.reason, end.evidence, end.life_s, end.censored) == (
        reason,
        Evidence(evidence),
        life_s,
        censored,
    )


def test_a_vm_that_never_ran_has_no_life() -> None:
    assert ending(days(running_at=None, cause=EndCause.FAILED)).life_s is None


POOL = Pool(cloud="x", region="r", zone="z", vm="v")


def listed(token: str, launched_s: float = 0) -> Listed:
    return Listed(token=token, pool=POOL, launched_at=at(launched_s))


def test_orphans_are_terminated_after_two_listings_and_the_grace() -> None:
    living = {"i-1": listed("known"), "i-2": listed("over"), "i-3": listed("nobodys")}
    rows = {"known": VmState.RUNNING, "over": VmState.TERMINATED}
    first = orphans.look(living, rows, {}, listed_at=at(0))
    assert set(first) == {"i-2", "i-3"}
    grace = timedelta(seconds=5)
    assert orphans.to_terminate(first, grace=timedelta()) == []
    second = orphans.look(living, rows, first, listed_at=at(4))
    assert orphans.to_terminate(second, grace=grace) == []
    third = orphans.look(living, rows, second, listed_at=at(5))
    ids = {orphan.cloud_id for orphan in orphans.to_terminate(third, grace=grace)}
    assert ids == {"i-2", "i-3"}


def test_one_listing_is_one_sighting_however_often_it_is_looked_at() -> None:
    found = orphans.look({"i-1": listed("t")}, {}, {}, listed_at=at(0))
    for _ in range(3):
        found = orphans.look({"i-1": listed("t")}, {}, found, listed_at=at(0))
    assert orphans.to_terminate(found, grace=timedelta()) == []


def test_the_grace_is_between_listings_not_between_looks() -> None:
    found = orphans.look({"i-1": listed("t")}, {}, {}, listed_at=at(0))
    found = orphans.look({"i-1": listed("t")}, {}, found, listed_at=at(1))
    assert orphans.to_terminate(found, grace=timedelta(seconds=1)) != []
    assert orphans.to_terminate(found, grace=timedelta(seconds=2)) == []


def test_an_orphan_that_a_listing_does_not_have_begins_anew() -> None:
    found = orphans.look({"i-1": listed("t")}, {}, {}, listed_at=at(0))
    found = orphans.look({}, {}, found, listed_at=at(5))
    found = orphans.look({"i-1": listed("t")}, {}, found, listed_at=at(10))
    assert orphans.to_terminate(found, grace=timedelta(seconds=1)) == []


def test_a_vm_that_is_terminating_is_no_orphan() -> None:
    assert orphans.look({"i-1": listed("t")}, {"t": VmState.TERMINATING}, {}, listed_at=at(0)) == {}


def test_a_preparation_says_what_failed_and_whose_failure_it_was() -> None:
    ours = PreparationFailedReport(phase="restore", message="no disk", user=False)
    for noticed, why in ((False, EndReason.INFRASTRUCTURE), (True, EndReason.PREEMPTED)):
        found = verdict.of_preparation(ours, noticed=noticed)
        assert (found.reason, found.text) == (why, "restore failed: no disk")


@pytest.mark.parametrize(
    ("fields", "stop", "text"),
    [
        ({"code": 3}, None, "the process exited with code 3"),
        ({"signal": 9}, None, "the process was ended by signal 9"),
        ({}, None, "the process ended, and how is not known"),
        ({"message": "it never started"}, None, "it never started"),
        ({"code": 3, "message": "bad flag"}, None, "bad flag (the process exited with code 3)"),
        ({"signal": 9, "message": "Killed"}, None, "Killed (the process was ended by signal 9)"),
        (
            {"code": 0, "message": "the VM is over", "stopped": True},
            None,
            "the process exited with code 0: the VM is over, stopped by the agent",
        ),
        ({"code": 0, "done": True}, None, "the process exited with code 0 after done()"),
        ({"code": 0}, None, "the process exited with code 0"),
        ({"code": 0}, EndReason.PAUSED, "the process exited with code 0, as asked: paused"),
        (
            {"code": 0, "stopped": True, "message": "cancelled"},
            EndReason.CANCELLED,
            "the process exited with code 0, as asked: cancelled",
        ),
        (
            {"code": 0, "stopped": True, "message": "preempted"},
            EndReason.PREEMPTED,
            "it was stopped because its replacement is ready",
        ),
        (
            {"signal": 15, "stopped": True},
            None,
            "the process was ended by signal 15, stopped by the agent",
        ),
        (
            {"code": 0, "uncommitted": 2},
            None,
            "the process exited with code 0, but 2 accepted backups could not be committed",
        ),
        (
            {"code": 0, "outputs_lost": "full"},
            None,
            "the process exited with code 0, but its outputs could not be uploaded: full",
        ),
    ],
)
def test_a_verdict_says_how_the_process_ended(
    fields: dict[str, object], stop: EndReason | None, text: str
) -> None:
    report = ExitedReport.model_validate(fields)
    assert verdict.of_exit(report, noticed=False, stop_wanted=stop).text == text


def test_out_of_memory_says_what_to_do() -> None:
    report = ExitedReport(signal=9, out_of_memory=True, message="Killed")
    found = verdict.of_exit(report, noticed=False, stop_wanted=None)
    assert found.text.startswith(
        "killed by the system: out of memory (the process was ended by signal 9); use a smaller"
    )


def test_an_end_after_a_notice_says_so() -> None:
    found = verdict.of_exit(ExitedReport(signal=15), noticed=True, stop_wanted=None)
    assert found.text == "the process was ended by signal 15 after a preemption notice"


@pytest.mark.parametrize(
    ("given_", "ended_at"),
    [
        ({}, at(100)),
        ({"cloud_ended_at": None}, at(101)),
        ({"ours": VmReason.RELEASED}, at(100)),
        ({"ours": VmReason.AGENT_LOST}, at(100)),
        ({"cause": EndCause.PREEMPTED}, at(100)),
        ({"cause": EndCause.FAILED}, at(100)),
        ({"notice_at": at(70), "deadline_at": at(110), "ours": VmReason.RELEASED}, at(100)),
    ],
)
def test_the_bill_ends_when_the_cloud_says_so(
    given_: dict[str, object], ended_at: datetime
) -> None:
    assert ending(days(**given_)).ended_at == ended_at


@pytest.mark.parametrize(
    ("given_", "life_s"),
    [
        ({"running_at": at(100.5), "cloud_ended_at": at(100)}, 0.0),  # clocks differ
        ({"running_at": at(99.5), "cause": EndCause.FAILED}, 0.5),
        ({"last_contact_at": None}, 100.0),  # it never spoke: what the cloud says is all there is
        ({"notice_at": at(70), "ours": VmReason.RELEASED}, 100.0),  # no deadline is known
        ({"notice_at": at(70), "deadline_at": at(110)}, 100.0),  # the cloud was early
    ],
)
def test_how_long_a_vm_lived(given_: dict[str, object], life_s: float) -> None:
    assert ending(days(**given_)).life_s == life_s


def test_an_orphan_is_known_by_its_token_and_its_listings() -> None:
    first = orphans.look({"i-1": listed("t")}, {}, {}, listed_at=at(5))
    late = orphans.look({"i-1": listed("t")}, {}, first, listed_at=at(3))  # an answer that was slow
    assert late == first
    assert first["i-1"] == orphans.Orphan(
        cloud_id="i-1",
        token="t",
        pool=POOL,
        launched_at=at(0),
        has_row=False,
        first_listed=at(5),
        last_listed=at(5),
        sightings=1,
    )
    second = orphans.look({"i-1": listed("t")}, {}, late, listed_at=at(9))["i-1"]
    assert (second.first_listed, second.last_listed, second.sightings) == (at(5), at(9), 2)


# --- which orphans are held -----------------------------------------------------------------------

LIMITS = HoldLimits(share=0.5, at_least=3)


def strays(*launched_s: float, has_row: bool = False) -> list[Orphan]:
    rows = {f"t{i}": VmState.TERMINATED for i in range(len(launched_s))} if has_row else {}
    living = {f"i-{i}": listed(f"t{i}", s) for i, s in enumerate(launched_s)}
    return list(orphans.look(living, rows, {}, listed_at=at(999)).values())


WRITTEN = Written(born_at=at(0), last_at=at(100), started_at=at(200))


@pytest.mark.parametrize(
    ("launched_s", "among", "held"),
    [
        ((50,), 1, False),
        ((50, 51), 2, False),  # fewer than three are never too many
        ((50, 51, 52), 6, True),
        ((50, 51, 52), 7, False),
        ((-1,), 100, True),  # before the database was made
        ((50, 100), 100, False),
        ((50, 101), 100, True),  # after it was written last, and before this master began
        ((50, 199), 100, True),
        ((50, 200), 100, False),
    ],
)
def test_strays_that_speak_against_the_database_are_held(
    launched_s: tuple[float, ...], among: int, held: bool
) -> None:
    why = orphans.hold(strays(*launched_s), listed=among, limits=LIMITS, written=WRITTEN)
    assert (why is not None) is held


def test_a_stray_that_has_a_row_says_nothing_of_the_database() -> None:
    known = strays(-1, 150, has_row=True)
    assert orphans.hold(known, listed=100, limits=LIMITS, written=WRITTEN) is None


def test_an_empty_database_says_nothing_of_its_age() -> None:
    empty = Written(born_at=None, last_at=None, started_at=at(200))
    assert orphans.hold(strays(-1, 150), listed=100, limits=LIMITS, written=empty) is None

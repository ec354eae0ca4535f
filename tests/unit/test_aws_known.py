"""What AWS's driver keeps of earlier answers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from spothop_master.clouds.aws.known import AGAIN_BASE_S, AGAIN_MAX_S, SpotRequests, Whereabouts
from spothop_master.clouds.aws.reading import SpotStatus
from spothop_master.clouds.base import AuthFailed, Throttled

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_vm_is_forgotten_some_time_after_its_listing_lacks_it() -> None:
    known = Whereabouts(timedelta(seconds=120))
    known.saw(["i-1", "i-2"], "east")
    known.saw(["i-3"], "west")
    assert known.unlisted("east", {"i-2"}, now=NOW) == ["i-1"]
    assert known.unlisted("east", {"i-2"}, now=after(119)) == ["i-1"]
    assert known.of("i-1") == "east", "it may not be listed yet"
    assert known.unlisted("east", {"i-2"}, now=after(120)) == ["i-1"]
    assert [known.of(vm) for vm in ("i-1", "i-2", "i-3")] == [None, "east", "west"]
    assert known.unlisted("east", {"i-2"}, now=after(121)) == []


def test_a_vm_that_is_listed_again_is_kept_anew() -> None:
    known = Whereabouts(timedelta(seconds=120))
    known.saw(["i-1"], "east")
    known.unlisted("east", (), now=NOW)
    known.saw(["i-1"], "east")
    known.unlisted("east", (), now=after(130))
    assert known.of("i-1") == "east"


def test_spot_requests_that_are_refused_are_asked_for_less_and_less() -> None:
    known = SpotRequests()
    assert known.is_due(NOW)
    known.answered({"i-1": SpotStatus(code="fulfilled")})
    assert known.is_due(NOW)
    waits = []
    for _ in range(10):
        known.failed(Throttled("slow down"), now=NOW)
        waits.append(next(s for s in range(1000) if known.is_due(after(s))))
    assert waits[0] <= AGAIN_BASE_S
    assert waits == sorted(waits)
    assert 0.5 * AGAIN_MAX_S < waits[-1] <= AGAIN_MAX_S
    assert known.statuses == {"i-1": SpotStatus(code="fulfilled")}
    assert known.is_due(after(-1)), "the clock was set back"


def test_a_policy_that_forbids_the_question_is_believed() -> None:
    known = SpotRequests()
    known.failed(AuthFailed("no", code="UnauthorizedOperation"), now=NOW)
    assert not known.is_due(after(10 * AGAIN_MAX_S))

"""The order of pools: preference, price, and lately bad ones last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop.catalog.needs import Amount, Needs, Shape
from spothop.wire import Pool, VmReason, VmState
from spothop_master.clouds import base
from spothop_master.core import placement
from spothop_master.core.facts import Match, Requirements, VmFacts
from spothop_master.core.placement import Choice, Prices, order
from spothop_master.core.refusals import REFUSALS, PoolRefusal
from support.examples import examples

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def pool(zone: str, *, vm: str = "gpu", spot: bool = True, cloud: str = "x") -> Pool:
    return Pool(cloud=cloud, region=zone[:1], zone=zone, vm=vm, spot=spot)


OFFERS = {pool("a1"): 1.0, pool("a2"): 3.0, pool("b1"): 2.0, pool("b1", spot=False): 6.0}


def ended(where: Pool, ago_s: float, **fields: object) -> VmFacts:
    when = NOW - timedelta(seconds=ago_s)
    known: dict[str, object] = {
        "id": f"vm-{where}-{ago_s}",
        "pool": where,
        "state": VmState.TERMINATED,
        "requested_at": when,
        "ended_at": when,
        **fields,
    }
    return VmFacts(**known)  # type: ignore[arg-type]


def refused(where: Pool, ago_s: float, error: str) -> PoolRefusal:
    return PoolRefusal(pool=where, error=error, last_at=NOW - timedelta(seconds=ago_s))


ANY = Requirements()
Past = VmFacts | PoolRefusal


def tried(requirements: Requirements, *past: Past) -> list[Choice]:
    history = [each for each in past if isinstance(each, VmFacts)]
    refusals = [each for each in past if isinstance(each, PoolRefusal)]
    return order(OFFERS, requirements, history, refusals, avoid_s=120, now=NOW)


def zones(requirements: Requirements = ANY, *past: Past) -> list[str]:
    return [choice.pool.zone for choice in tried(requirements, *past)]


def test_every_error_of_a_cloud_can_be_written_down() -> None:
    kinds = (kind for kind in vars(base).values() if isinstance(kind, type))
    names = [kind.__name__ for kind in kinds if issubclass(kind, base.CloudError)]
    assert sorted(names) == sorted(REFUSALS)


def test_the_cheapest_spot_pool_comes_first() -> None:
    assert zones() == ["a1", "b1", "a2"]


def test_on_demand_only_when_it_is_asked_for() -> None:
    assert zones(Requirements(spot=False)) == ["b1"]


def test_any_of_goes_before_the_price_and_filters() -> None:
    assert zones(Requirements(any_of=(Match(zone="a2"), Match(region="b")))) == ["a2", "b1"]


def test_max_price_is_a_limit() -> None:
    assert zones(Requirements(max_price=2.0)) == ["a1", "b1"]


def test_a_refusing_pool_goes_last_for_a_while() -> None:
    assert zones(ANY, refused(pool("a1"), 10, "NoCapacity")) == ["b1", "a2", "a1"]
    assert zones(ANY, refused(pool("a1"), 121, "NoCapacity")) == ["a1", "b1", "a2"]


def test_among_bad_ones_the_longest_unharmed_is_first() -> None:
    harm = [
        refused(pool("a1"), 1, "NoCapacity"),
        ended(pool("b1"), 30, reason=VmReason.PREEMPTED),
        refused(pool("a2"), 20, "NoCapacity"),
    ]
    assert zones(ANY, *harm) == ["b1", "a2", "a1"]


def test_a_preemption_counts_against_the_whole_zone() -> None:
    offers = {pool("a1"): 1.0, pool("a1", vm="big"): 1.5, pool("b1"): 2.0}
    gone = ended(pool("a1"), 5, reason=VmReason.PREEMPTED)
    choices = order(offers, Requirements(), [gone], avoid_s=120, now=NOW)
    assert choices[0].pool.zone == "b1"
    assert "preempted 5 s ago" in choices[1].reason


def test_a_notice_counts_before_the_kill() -> None:
    draining = ended(pool("a1"), 5, state=VmState.DRAINING, ended_at=None, notice_at=NOW)
    assert zones(ANY, draining)[-1] == "a1"


def test_a_final_refusal_takes_the_pool_out() -> None:
    assert zones(ANY, refused(pool("a1"), 9999, "BadRequest")) == ["b1", "a2"]


@given(
    prices=st.dictionaries(
        st.sampled_from([pool(f"{r}{i}") for r in "abc" for i in range(3)]),
        st.floats(0.1, 10),
        max_size=9,
    ),
    harmed=st.lists(st.integers(0, 8), max_size=5),
)
@examples(100)
def test_each_matching_pool_is_tried_once_and_harm_only_delays(
    prices: dict[Pool, float], harmed: list[int]
) -> None:
    pools = sorted(prices, key=str)
    bad = {pools[i] for i in harmed if i < len(pools)}
    refusals = [refused(p, 3, "NoCapacity") for p in bad]
    chosen = [c.pool for c in order(prices, Requirements(), (), refusals, avoid_s=60, now=NOW)]
    assert sorted(map(str, chosen)) == sorted(map(str, prices))
    assert all(p not in bad for p in chosen[: len(prices) - len(bad)])


def reasons(*past: Past) -> list[str]:
    return [choice.reason for choice in tried(ANY, *past)]


def test_each_pool_says_its_price_and_why_it_comes_last() -> None:
    first, _, last = reasons(refused(pool("a1"), 10, "NoCapacity"))
    assert first == f"{pool('b1')} at 2 USD/h"
    assert last == f"{pool('a1')} at 1 USD/h, tried last (NoCapacity 10 s ago)"


def test_a_choice_has_its_price() -> None:
    assert [c.price for c in order(OFFERS, ANY, avoid_s=120, now=NOW)] == [1.0, 2.0, 3.0]


def test_trouble_is_forgotten_at_the_end_of_its_time() -> None:
    assert zones(ANY, refused(pool("a1"), 119.9, "NoCapacity"))[-1] == "a1"
    assert zones(ANY, refused(pool("a1"), 120, "NoCapacity"))[0] == "a1"


def test_the_newest_trouble_of_a_pool_counts() -> None:
    harm = [
        ended(pool("a1"), 50, reason=VmReason.PREEMPTED),
        refused(pool("a1"), 5, "Throttled"),
        refused(pool("b1"), 20, "NoCapacity"),
    ]
    assert zones(ANY, *harm) == ["a2", "b1", "a1"]
    assert reasons(*harm)[-1].endswith("tried last (Throttled 5 s ago)")


def test_what_is_no_trouble_of_a_pool() -> None:
    best = ["a1", "b1", "a2"]
    assert zones(ANY, refused(pool("a1", vm="big"), 5, "NoCapacity")) == best
    assert zones(ANY, ended(pool("a1", cloud="y"), 5, reason=VmReason.PREEMPTED)) == best
    assert zones(ANY, ended(pool("a1"), 5, reason=VmReason.RELEASED)) == best
    assert zones(ANY, ended(pool("a1"), 5, reason=VmReason.PREEMPTED, ended_at=None)) == best
    on_demand = ended(pool("a1", spot=False), 5, reason=VmReason.PREEMPTED)
    assert zones(ANY, on_demand) == best


def test_a_notice_counts_from_its_own_time() -> None:
    noticed = ended(pool("a1"), 5, notice_at=NOW - timedelta(seconds=9), reason=VmReason.PREEMPTED)
    assert reasons(noticed)[-1].endswith("tried last (preempted 9 s ago)")


def test_a_final_refusal_of_another_pool_takes_nothing_out() -> None:
    assert zones(ANY, refused(pool("c1"), 5, "BadRequest")) == ["a1", "b1", "a2"]
    assert zones(ANY, refused(pool("a1"), 5, "BadRequest")) == ["b1", "a2"]


def test_credentials_can_be_mended() -> None:
    assert zones(ANY, refused(pool("a1"), 5, "AuthFailed")) == ["b1", "a2", "a1"]


def test_every_field_of_an_entry_of_any_of_must_match() -> None:
    for match in (Match(cloud="y"), Match(region="c"), Match(zone="c1"), Match(vm="cpu")):
        assert zones(Requirements(any_of=(match,))) == []
    whole = Match(cloud="x", region="a", zone="a2", vm="gpu")
    assert zones(Requirements(any_of=(whole,))) == ["a2"]


def test_equal_prices_are_in_the_order_of_their_names() -> None:
    offers = {pool("b2"): 1.0, pool("b1"): 1.0, pool("a9"): 1.0}
    chosen = order(offers, ANY, avoid_s=120, now=NOW)
    assert [c.pool.zone for c in chosen] == ["a9", "b1", "b2"]


def test_what_a_vm_type_has_is_asked_only_where_its_name_fits() -> None:
    class Counted(dict[Pool, Shape]):
        asked = 0

        def get(self, *key: Any) -> Any:
            self.asked += 1
            return super().get(*key)

    shape = Shape(cpus=8, memory_gib=32)
    offers = {pool(f"a{i}", vm=f"type-{i % 4}"): 1.0 for i in range(40)}
    shapes = Counted(dict.fromkeys(offers, shape))
    wants = Requirements(any_of=(Match(vm="type-1", needs=Needs(memory=Amount(32.0))),))
    found = order(offers, wants, shapes=shapes, avoid_s=120, now=NOW)
    assert {choice.pool.vm for choice in found} == {"type-1"}
    assert shapes.asked == len(found) == 10


def test_prices_remember_the_order_of_each_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what had trouble since is last all the same."""
    prices, cheap = Prices(OFFERS, {}), Requirements(max_price=2.5)
    past = [ended(pool("a1"), 10, reason=VmReason.PREEMPTED), refused(pool("b1"), 5, "NoCapacity")]
    wishes = [(ANY, past[:0]), (ANY, past), (cheap, past[:0]), (cheap, past)]

    def asked(offers: Mapping[Pool, float]) -> list[list[Choice]]:
        return [
            order(
                offers,
                wish,
                [each for each in seen if isinstance(each, VmFacts)],
                [each for each in seen if isinstance(each, PoolRefusal)],
                avoid_s=120,
                now=NOW,
            )
            for wish, seen in wishes
        ]

    expected = asked(OFFERS)
    assert asked(prices) == expected
    monkeypatch.setattr(placement, "_preference", None)  # would raise
    assert asked(prices) == expected


def test_of_many_wishes_only_some_orders_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "REMEMBERED", 2)
    prices = Prices(OFFERS, {})
    for limit in (1.0, 2.0, 3.0):
        assert len(prices.ranked(Requirements(max_price=limit))) == limit
    assert len(prices._known) == 1

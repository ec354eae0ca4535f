"""The user data of a launch: the same bytes whenever it is said, by whichever master."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.fake_cloud import FakeCloud
from fakes.http_master import HttpMaster
from fakes.master_harness import MasterHarness
from spothop_master.boot import user_data
from spothop_master.boot.console import last_words
from spothop_master.boot.packages import PackageError
from spothop_master.clouds.base import Ambiguous, LaunchSpec, Vm
from spothop_master.keys import Keys
from spothop_master.loops.booting import Booting, ScriptChanged, script_of
from spothop_master.store.retention import zips_of_living_vms

pytestmark = pytest.mark.databases

KEYS = Keys.of(b"k" * 32)
BOOTING = Booting(
    join_token=KEYS.join_token, zips=lambda: {"any": "a" * 64}, ca="-----BEGIN CERTIFICATE-----"
)


class Unclear(FakeCloud):
    """Never answers clearly, and makes no VM."""

    asked: list[LaunchSpec]

    def launch(self, spec: LaunchSpec, token: str) -> Vm:
        self.asked.append(spec)
        raise Ambiguous("timed out")


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MasterHarness]:
    harness = MasterHarness(tmp_path)
    harness.cloud.boots_images = True
    harness.booting = BOOTING
    harness.restart()
    yield harness
    harness.db.close()


def test_a_vm_is_told_what_its_row_says(harness: MasterHarness) -> None:
    harness.submit()
    harness.look()
    (spec,), (row,) = harness.cloud.launches, harness.vms()
    assert spec.script == user_data.render(spec.user_data, {"any": "a" * 64})
    assert row.user_data_sha256 == user_data.sha256_of(spec.script)
    assert spec.user_data.token == KEYS.join_token(row.id)
    assert spec.user_data.ca == BOOTING.ca
    assert spec.user_data.away_s == harness.settings.dead_man_s

    assert row.boot is not None
    assert spec.user_data.token not in row.boot
    assert json.loads(row.boot)["config"]["ca"] == BOOTING.ca


def test_a_job_may_say_how_long_its_master_may_be_away(harness: MasterHarness) -> None:
    harness.submit(master_away="2h")
    harness.look()
    assert harness.cloud.launches[-1].user_data.away_s == 7200.0


def test_a_cloud_whose_vms_boot_no_image_gets_none(harness: MasterHarness) -> None:
    harness.cloud.boots_images = False
    harness.submit()
    harness.look()
    assert harness.cloud.launches[0].script == ""
    assert harness.vms()[0].boot is None


def test_a_launch_that_is_repeated_says_the_same(harness: MasterHarness) -> None:
    cloud = Unclear(clock=harness.clock, boots_images=True)
    cloud.asked = []
    harness.cloud, harness.repeat_after_s = cloud, (0.0, 0.0)
    harness.restart()
    harness.submit()
    harness.look()
    assert len(cloud.asked) > 1
    assert all(spec == cloud.asked[0] for spec in cloud.asked)
    assert cloud.asked[0].script


def test_an_upgrade_or_a_new_authority_changes_nothing_in_flight(harness: MasterHarness) -> None:
    harness.submit()
    harness.look()
    spec = harness.cloud.launches[0]
    later = Booting(join_token=KEYS.join_token, zips=lambda: {"any": "b" * 64}, ca="another")
    said = spec.user_data.model_copy(update={"ca": "another", "master": "https://elsewhere"})
    assert script_of(harness.db, said, later) == spec.script


def test_what_cannot_be_said_again_is_not_said(
    harness: MasterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.submit()
    harness.look()
    config = harness.cloud.launches[0].user_data
    other_key = replace(BOOTING, join_token=Keys.of(b"o" * 32).join_token)
    with pytest.raises(ScriptChanged, match="another master key"):
        script_of(harness.db, config, other_key)
    program = user_data._program()
    monkeypatch.setattr(user_data, "_program", lambda: program + "# upgraded\n")
    with pytest.raises(ScriptChanged, match="another version"):
        script_of(harness.db, config, BOOTING)


def test_a_launch_without_user_data_is_refused_with_the_reason(harness: MasterHarness) -> None:
    def zips() -> dict[str, str]:
        raise PackageError("no tenacity here")

    harness.booting = replace(BOOTING, zips=zips)
    harness.restart()
    harness.submit()
    harness.look()
    assert harness.cloud.launches == []
    assert "no tenacity here" in harness.refusals()[0].detail


def test_a_token_is_derived_and_joins_once(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as master:
        agent = master.joined()
        assert agent.join_token == master.services.keys.join_token(agent.vm)


def test_the_console_of_a_vm_that_never_joined_is_told_and_the_vm_replaced(
    harness: MasterHarness,
) -> None:
    harness.submit()
    harness.settle(3)
    first = harness.machine()
    harness.cloud.consoles[first.id] = (
        "[ 1.0] Linux version 6\r\n"
        "spothop vm-1 2030-01-01T00:00:00Z boot: VM vm-1, master https://m\r\n"
        "spothop vm-1 2030-01-01T00:00:09Z boot: this image has no python3: give another\r\n"
        "login:\r\n"
    )
    harness.settle(int(harness.settings.join_timeout_s or 0) + 10)
    (told,) = [event for event in harness.events("message") if "console" in event.text]
    assert told.text.endswith("boot: this image has no python3: give another")
    assert "Linux version" not in told.text
    assert "login" not in told.text
    assert harness.machine().id != first.id
    reasons = [vm.reason for vm in harness.vms()]
    assert "never_joined" in reasons


@pytest.mark.parametrize(
    ("console", "words"),
    [("", ""), ("a\n\nb\n", "a\nb"), ("x" * 999, "x" * 300), ("l\n" * 99, "\n".join("l" * 20))],
)
def test_a_console_without_our_lines_is_told_by_its_end(console: str, words: str) -> None:
    assert last_words(console) == words


def test_zips_of_living_vms_stay(harness: MasterHarness) -> None:
    harness.submit()
    harness.look()
    with harness.db.read() as session:
        assert zips_of_living_vms(session) == {"a" * 64}
    harness.want("cancelled")
    harness.settle(5)
    with harness.db.read() as session:
        assert zips_of_living_vms(session) == set()

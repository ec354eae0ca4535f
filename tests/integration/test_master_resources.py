"""What a job asks of its VMs, through the whole master: refused with a hint, or planned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fakes.http_master import BUNDLE_SHA256, HttpMaster
from spothop.catalog.table import BadCatalogue
from spothop.wire import CheckView, PlanReply, Problem, Verdict
from spothop_master.clouds.base import PoolInfo
from spothop_master.clouds.local.config import built_in
from spothop_master.clouds.local.driver import LocalCloud

pytestmark = pytest.mark.databases

PLAN = "/api/v1/plan"
OWN = "cloud,vm,gpu,gpus,gpu_memory_gib,cpus,memory_gib\nfake,gpu,A100,8,40,96,1152\n"
"""What the VM type of the fake cloud has."""


def spec(**resources: Any) -> dict[str, Any]:
    return {"name": "a", "run": "x", "resources": resources}


def planned(master: HttpMaster, **resources: Any) -> list[str]:
    answer = master.post(PLAN, json={"spec": spec(**resources)})
    assert answer.status_code == 200, answer.text
    return [str(row.pool) for row in PlanReply.model_validate(answer.json()).pools]


def refused(master: HttpMaster, **resources: Any) -> Problem:
    """The plan and the submit answer alike."""
    master.upload()
    body = {"spec": spec(**resources), "bundle": BUNDLE_SHA256, "token": "t"}
    answers = [
        master.post(PLAN, json={"spec": body["spec"]}),
        master.post("/api/v1/jobs", json=body),
    ]
    assert [answer.status_code for answer in answers] == [422, 422]
    plan, submit = (Problem.model_validate(answer.json()) for answer in answers)
    assert plan == submit
    return plan


def own(folder: Path, text: str = OWN) -> Path:
    file = folder / "own.csv"
    file.write_text(text)
    return file


def test_the_settings_catalogue_tells_what_a_vm_type_has(tmp_path: Path) -> None:
    with HttpMaster(tmp_path, catalog=own(tmp_path)) as master:
        assert planned(master, gpu="a100:8") == planned(master)
        assert planned(master, gpu=["H100:8", "A100-40GB:8"], memory="1024+") == planned(master)
        assert refused(master, gpu="A100-80GB:8").error == "no_pool"


def test_what_the_cloud_itself_tells_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpMaster(tmp_path, catalog=own(tmp_path)) as master:
        shape = master.services.watcher.catalogue.shape("fake", "gpu")
        assert shape is not None
        told = dataclasses.replace(shape, gpus=4)
        offered = master.cloud.pools

        def pools() -> list[PoolInfo]:
            return [dataclasses.replace(info, shape=told) for info in offered()]

        monkeypatch.setattr(master.cloud, "pools", pools)
        assert planned(master, gpu="A100:4")
        assert refused(master, gpu="A100:8").error == "no_pool"


def test_a_gpu_that_nobody_knows_is_answered_with_field_value_and_near_names(
    tmp_path: Path,
) -> None:
    with HttpMaster(tmp_path) as master:
        found = refused(master, any_of=[{"cloud": "fake"}, {"gpu": "A1000:8"}])
        assert found.error == "bad_job_file"
        assert found.field == "resources.any_of[1].gpu"
        assert "'A1000:8'" in found.message
        assert "did you mean A100" in found.hint


def test_what_no_cloud_of_this_master_has_is_answered_with_vm_types_that_would_do(
    tmp_path: Path,
) -> None:
    with HttpMaster(tmp_path) as master:
        found = refused(master, gpu="H200:8")
        assert (found.error, found.field) == ("no_pool", "resources")
        assert "aws/p5en.48xlarge, aws/p5e.48xlarge would do" in found.hint


def test_a_bad_catalogue_stops_the_start_and_says_where_it_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BadCatalogue, match=r"own\.csv: no column 'colour'"):
        HttpMaster(tmp_path, catalog=own(tmp_path, "cloud,vm,colour\n"))


def test_a_cloud_without_an_account_has_nothing_to_check(tmp_path: Path) -> None:
    with HttpMaster(tmp_path) as master:
        answer = master.get("/api/v1/checks")
        assert [CheckView.model_validate(each) for each in answer.json()] == [
            CheckView(cloud="fake", subject="account", verdict=Verdict.OK, fact="it needs none")
        ]
        assert master.get("/api/v1/checks?cloud=fake").json() == answer.json()
        refused = master.get("/api/v1/checks?cloud=mars")
        assert refused.status_code == 422
        problem = Problem.model_validate(refused.json())
        assert (problem.error, problem.field) == ("no_such_cloud", "cloud")
        assert "'mars' is none of this master's clouds (fake)" in problem.message


def test_the_local_cloud_tells_what_its_vms_have(tmp_path: Path) -> None:
    config = built_in(tmp_path / "cloud").model_copy(update={"isolation": "processes"})
    pools = [config.pools[0].model_copy(update={"cpus": 4, "memory_gib": 8.0}), *config.pools[1:]]
    local = LocalCloud(config.model_copy(update={"pools": pools}))
    with HttpMaster(tmp_path, clouds={"local": local}) as master:
        assert len(planned(master, cpus="1+", memory="1+")) == 3
        assert planned(master, cpus=4, memory="8GB", zone="local-1a") == [
            "local/local-1a/small/spot"
        ]
        assert refused(master, gpu="T4", cloud="local").error == "no_pool"

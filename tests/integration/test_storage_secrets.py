"""A whole job on an S3 of its own: endpoint and keys from the job file, and nobody else sees them.

Real application, agent, chain and S3 over HTTP; the training process and the time are scripted.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.agent_vm import pack
from fakes.attempt_harness import OK
from fakes.http_master import HttpMaster
from fakes.s3_server import FOR_EVER, S3Server
from fakes.scripted_process import ScriptedProcess
from fakes.virtual_time import play, until
from spothop import cli, jobfile
from spothop.checkpoints import Chain, Entry
from spothop.cli.session import Session
from spothop.sdk.client import Client
from spothop.sdk.settings import ClientSettings
from spothop.storage import open_store
from spothop_agent.agent import Agent
from spothop_agent.chaos import from_text
from spothop_agent.paths import AttemptPaths
from spothop_agent.watch import Notice

pytestmark = pytest.mark.databases

SECRETS = {"access_key_id": "AKIAIOSFODNN7EXAMPLE", "secret_access_key": "wJalrXUtnFEMIK7MDENG"}
BUNDLE = pack({"train.py": ""})
SHA256 = hashlib.sha256(BUNDLE).hexdigest()
YAML = """
name: mnist
run: python train.py
checkpoint:
  storage:
    url: s3://bucket/runs
    options:
      endpoint: {endpoint}
      allow_http: true
      region: us-east-1
      access_key_id: {access_key_id}
      secret_access_key: {secret_access_key}
"""


class Site:
    """A master, an S3 server, and the VMs that a test boots. HTTP is answered in one thread of its
    own, so that neither loop runs inside the other."""

    def __init__(self, root: Path, master: HttpMaster, s3: S3Server) -> None:
        self.root, self.master, self.s3 = root, master, s3
        self.file = root / "job.yaml"
        self.file.write_text(YAML.replace("{endpoint}", s3.endpoint).format(**SECRETS))
        self._thread = ThreadPoolExecutor(1)

    def answer(self, request: httpx.Request) -> httpx.Response:
        return self._thread.submit(self._answer, request).result()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        found = self.master.call(
            request.method,
            request.url.raw_path.decode(),
            token=token,
            content=request.content,
            headers={"content-type": request.headers.get("content-type", "")},
        )
        return httpx.Response(
            found.status_code, stream=httpx.ByteStream(found.content), headers=found.headers
        )

    def client(self) -> Client:
        return Client("http://m", self.master.admin, transport=httpx.MockTransport(self.answer))

    def spothop(self, *arguments: str) -> int:
        session = Session(
            settings=ClientSettings(token=self.master.admin, master_home=self.root),
            transport=httpx.MockTransport(self.answer),
            terminal=False,
            can_ask=False,
        )
        return cli.run(list(arguments), session)

    def submit(self, token: str = "once") -> httpx.Response:
        spec = jobfile.load(self.file).as_mapping()
        self.master.call("PUT", f"/api/v1/bundles/{SHA256}", content=BUNDLE)
        body = {"spec": spec, "bundle": SHA256, "token": token}
        return self.master.post("/api/v1/jobs", json=body)

    def plan(self) -> httpx.Response:
        spec = jobfile.load(self.file).as_mapping()
        return self.master.post("/api/v1/plan", json={"spec": spec})

    def booted(self) -> Agent:
        """The agent of the VM that was launched last."""
        for _ in range(4):
            self.master.look(1.0)
        config = self.master.cloud.launches[-1].user_data
        self.vm = self.root / f"vm-{len(self.master.cloud.launches)}"
        self.vm.mkdir()
        clock = _Clock(asyncio.get_running_loop())
        self.process: ScriptedProcess | None = None

        def process(paths: AttemptPaths) -> ScriptedProcess:
            self.process = ScriptedProcess(paths, clock.monotonic)
            return self.process

        return Agent(
            config.model_copy(update={"master": "http://m", "directory": str(self.vm)}),
            clock=clock,
            rng=random.Random(1),
            chaos=from_text("", self.root),
            base_env={"PATH": "/bin"},
            watcher=_no_notice,
            acknowledge=_acknowledged,
            transport=httpx.MockTransport(self.answer),
            make_process=process,
        )


class _Clock:
    """The time of the loop, from the threads of uploads too."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.monotonic = self.boottime = loop.time


async def _no_notice(grace_s: float) -> AsyncIterator[Notice]:
    never: Any = None
    while never:
        yield never


async def _acknowledged(notice: Notice) -> bool:
    return True


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with HttpMaster(tmp_path, max_bundle_bytes=100_000) as master, S3Server() as s3:
        yield Site(tmp_path, master, s3)


def train(site: Site, step: int) -> None:
    """The agent prepares, the process saves once and ends well."""

    async def life() -> None:
        running = asyncio.create_task(site.booted().run())
        await until(lambda: site.process is not None and site.process.starts)
        assert site.process is not None
        site.process.say("hello", v=1)
        site.process.steps(step, count=step)
        site.process.hand_over(step)
        await until(lambda: any("/chain/00000002" in key for key in site.s3.objects))
        site.process.say("done", step=step)
        site.process.end(OK)
        while not running.done():
            await asyncio.sleep(0.5)
            site.master.services.supervisor.run_once()
        assert running.result() == 0

    play(life)


def test_a_whole_job_with_endpoint_and_keys_from_its_file(site: Site) -> None:
    job = site.submit().json()["id"]
    train(site, 7)
    site.master.look(1.0)
    assert site.master.get(f"/api/v1/jobs/{job}").json()["state"] == "succeeded"
    signed = {asked.headers["authorization"].split("/")[0] for asked in site.s3.asked}
    assert signed == {f"AWS4-HMAC-SHA256 Credential={SECRETS['access_key_id']}"}
    spec = site.s3.spec("s3://bucket/runs", **SECRETS)
    newest = next(Chain(open_store(spec), job).newest_first())
    assert isinstance(newest, Entry)
    assert newest.step == 7
    to = site.root / "to"
    assert site.spothop("download", job, "--file", str(site.file), "--to", str(to)) == 0
    assert (to / "c").read_text() == "data"


def test_no_way_out_shows_a_secret(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    """Every answer to a user, page, event, log and file; the exceptions are named at the end."""
    shown: dict[str, str] = {}
    job = site.submit().json()["id"]
    site.s3.fail("PutObject", "*/data/*", 403, "InvalidAccessKeyId", times=1)
    train(site, 7)
    shown |= {route: site.master.get(route).text for route in _gets(job)}
    assert all('"error"' not in text[:10] for text in shown.values()), shown
    for name in ("show", "status", "jobs", "events", "logs", "vms"):
        arguments = [name] if name in ("status", "jobs", "vms") else [name, job]
        for form in ([], ["--json"]):
            if site.spothop(*arguments, *form) != 2:  # no such command or option
                shown[f"spothop {name} {form}"] = "".join(capfd.readouterr())
    shown["submit again"] = site.submit().text
    shown["submit another"] = site.submit("twice").text
    body = {"spec": jobfile.load(site.file).as_mapping()}
    body["spec"]["checkpoint"]["storage"]["options"]["secret_acess_key"] = "wJalrXUtnFEMIK7MDENG"
    shown["refused"] = site.master.post("/api/v1/plan", json=body).text
    shown["malformed"] = site.master.post("/api/v1/plan", json={"spec": str(body)}).text
    for what, text in shown.items():
        assert not any(secret in text for secret in SECRETS.values()), what
    assert site.s3.endpoint in shown[f"/api/v1/jobs/{job}"]
    assert _files_with_secrets(site.root) == {"state.json", "job.yaml"}
    assert (site.vm / "state.json").stat().st_mode & 0o077 == 0


def _gets(job: str) -> list[str]:
    routes = [f"/api/v1/jobs/{job}{more}" for more in ("", "/events", "/logs")]
    routes += ["/api/v1/jobs?all=true", "/api/v1/vms", "/api/v1/pools"]
    return [*routes, "/", f"/jobs/{job}", "/vms", "/pools"]


def _files_with_secrets(root: Path) -> set[str]:
    found = set()
    for path in root.rglob("*"):
        if path.is_file() and any(s.encode() in path.read_bytes() for s in SECRETS.values()):
            found.add(path.name.removesuffix("-wal"))
    return found


@pytest.mark.parametrize("asked", ["plan", "submit"])
def test_a_bucket_that_refuses_is_found_before_a_vm_is_paid_for(site: Site, asked: str) -> None:
    site.s3.fail("PutObject", "*", 403, "AccessDenied", times=FOR_EVER)
    found = site.plan() if asked == "plan" else site.submit()
    assert found.status_code == 422
    problem = found.json()
    assert (problem["error"], problem["field"]) == ("bad_storage", "checkpoint.storage")
    assert "s3://bucket/runs: 403 AccessDenied" in problem["message"]
    assert "access_key_id, secret_access_key in checkpoint.storage.options" in problem["hint"]
    assert not any(secret in found.text for secret in SECRETS.values())
    assert site.master.get("/api/v1/jobs").json()["jobs"] == []


def test_the_same_submit_twice_is_one_job(site: Site) -> None:
    first, second = site.submit(), site.submit()
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]


def test_a_job_that_begins_from_another_ones_checkpoint_gets_its_options(site: Site) -> None:
    job = site.submit().json()["id"]
    spec = {"name": "next", "run": "true", "checkpoint": {"init_from": f"job:{job}"}}
    body = {"spec": spec, "bundle": SHA256, "token": "next"}
    assert site.master.post("/api/v1/jobs", json=body).status_code == 201
    for _ in range(4):
        site.master.look(1.0)
    token = site.master.cloud.launches[-1].user_data.token
    joined = site.master.post(
        "/agent/v1/join", json={"token": token, "agent_version": "1"}, token=""
    ).json()
    assert joined["assignment"]["storage"]["url"].startswith("file://")
    assert joined["assignment"]["init_from"]["storage"]["options"].items() >= SECRETS.items()


def test_a_download_with_another_jobs_file_is_refused(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    job = site.submit().json()["id"]
    site.file.write_text(site.file.read_text().replace("bucket/runs", "bucket/other"))
    assert site.spothop("download", job, "--file", str(site.file)) == 1
    assert "give the job file that it was submitted with" in capfd.readouterr().err

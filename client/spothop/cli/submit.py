"""`spothop submit`: pack, plan, ask, upload, submit, follow; and `spothop plan`, its first part."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer

from spothop import jobfile
from spothop.cli import plan_view, views
from spothop.cli.commands.common import print_json
from spothop.cli.follow import Follower, Screen
from spothop.cli.session import Session, aside
from spothop.figures import size
from spothop.jobspec import JobSpec
from spothop.sdk.bundle import Bundle, pack_files
from spothop.sdk.client import Client
from spothop.sdk.codefiles import CodeFiles, survey
from spothop.sdk.errors import ClientError
from spothop.wire import JobState, JobView

EXIT_CODES = {
    JobState.SUCCEEDED: 0,
    JobState.FAILED: 1,
    JobState.CANCELLED: 3,
    JobState.PAUSED: 4,
}
"""Of a followed job, by how it ended. 2 is wrong usage."""


def submit(
    session: Session, file: Path, *, yes: bool, detach: bool, verbose: bool, as_json: bool
) -> int:
    """Returns the exit code."""
    spec = jobfile.load(file)
    if not yes and not session.can_ask:
        raise typer.BadParameter("cannot ask, the input is no terminal: add --yes")
    with session.client() as client, tempfile.TemporaryDirectory(prefix="spothop-") as aside:
        code = file.parent / spec.code.path
        found = survey(code, include=spec.code.include)
        bundle = pack_files(found, code, Path(aside) / "bundle.tar.gz")
        if not as_json:
            _show_plan(session, client, spec, found, bundle)
        if not yes and not typer.confirm(f"Submit {spec.name}?"):
            typer.echo("not submitted", err=True)
            return 1
        job = client.submit(spec, client.upload_bundle(bundle))
        if as_json:
            print_json(job.model_dump(mode="json"))
            return 0
        session.say(f"submitted {job.id}")
        if detach:
            session.say(f"`spothop logs {job.id} -f` follows its log")
            return 0
        return _follow(session, client, job, verbose=verbose)


def plan(session: Session, file: Path, *, as_json: bool) -> None:
    """What `submit` would pack, and where the job would run; packs and sends nothing."""
    spec = jobfile.load(file)
    found = survey(file.parent / spec.code.path, include=spec.code.include)
    with session.client() as client:
        reply = client.plan(spec)
    if as_json:
        print_json({**reply.model_dump(mode="json"), "code": plan_view.code_json(found)})
        return
    console = session.console()
    plan_view.code(console, spec.name, found)
    plan_view.pools(console, reply)
    plan_view.limits(console, spec)


def _show_plan(
    session: Session, client: Client, spec: JobSpec, found: CodeFiles, bundle: Bundle
) -> None:
    plan = client.plan(spec)
    if not plan.pools:
        raise ClientError(
            f"no pool fits the resources of {spec.name}",
            "relax `resources:` (any_of, spot, max_price) in the job file",
        )
    console = session.console()
    plan_view.code(console, spec.name, found, f"{size(bundle.size)} packed")
    plan_view.pools(console, plan)
    plan_view.limits(console, spec)


def _follow(session: Session, client: Client, job: JobView, *, verbose: bool) -> int:
    with Screen(session.console(), terminal=session.terminal, verbose=verbose) as screen:
        follower = Follower(client, job.id, screen, sleep=session.sleep)
        while True:
            try:
                ended = follower.run()
                break
            except KeyboardInterrupt:
                screen.pause()
                if not _cancel_wanted(session, job.id):
                    session.say(f"the job goes on; `spothop logs {job.id} -f` follows it again")
                    return 130
                client.cancel(job.id)
                screen.resume()
    aside(f"cost: {views.cost(ended)}; lost: {views.lost(ended)}")
    reason = f" ({ended.reason})" if ended.reason else ""
    aside(f"{ended.id}: {ended.state}{reason}")
    if ended.state is JobState.PAUSED:
        aside(f"`spothop resume {ended.id}` lets it go on")
    return EXIT_CODES[ended.state]


def _cancel_wanted(session: Session, job: str) -> bool:
    if not (session.terminal and session.can_ask):
        return False
    try:
        answer: str = typer.prompt(
            f"\nStop following, or cancel {job}? [s/c]", default="s", show_default=False
        )
    except typer.Abort:  # Ctrl-C again, which leaves the line open
        typer.echo()
        return False
    return answer.strip().lower().startswith("c")

"""The commands. Everything heavy is imported inside, so that `spothop --help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spothop.cli.session import session_of

app = typer.Typer(
    name="spothop",
    help="Train on spot VMs as if they were reliable.",
    epilog="Settings: SPOTHOP_URL, SPOTHOP_TOKEN, SPOTHOP_HOME. Example: spothop submit job.yaml",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of the job, or its name if only one has it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NdjsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"spothop {version('spothop')}")
        raise typer.Exit


def _notice(seconds: float | None) -> float | None:
    if seconds is not None and not 0 <= seconds < float("inf"):
        raise typer.BadParameter(f"{seconds:g} is no time; give seconds from 0 on")
    return seconds


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def master(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")] = None,
    home: Annotated[Path | None, typer.Option(help="Where it keeps its data.")] = None,
) -> None:
    """Run a master here, with the local cloud built in.

    Other options go through to `python -m spothop_master`.

    Example: spothop master --port 8900
    """
    from spothop.cli.local_master import start

    start(session_of(context), host=host, port=port, home=home, others=context.args)


@app.command()
def submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job file (YAML).")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the job as JSON; needs --yes and --detach.")
    ] = False,
) -> int:
    """Submit a job, and follow it to its end.

    Shows where it would run and at what price, and asks. Exits with 0 when the job succeeded. While
    following, Ctrl-C asks whether to stop following or to cancel the job.

    Example: spothop submit job.yaml
    """
    from spothop.cli.submit import submit

    if as_json and not (yes and detach):
        raise typer.BadParameter("--json needs --yes and --detach")
    return submit(session_of(context), file, yes=yes, detach=detach, as_json=as_json)


@app.command()
def plan(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job file (YAML).")],
    as_json: JsonOption = False,
) -> None:
    """Show where a job would run and at what price.

    Example: spothop plan job.yaml
    """
    from spothop import jobfile
    from spothop.cli import views

    session = session_of(context)
    spec = jobfile.load(file)
    with session.client() as client:
        found = client.plan(spec)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        views.plan(session.console(), found)


@app.command()
def jobs(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also those long over.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first.

    Example: spothop jobs --state running
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.jobs(state=state, all=all_)
    if as_json:
        _print_json([job.model_dump(mode="json") for job in found])
    else:
        views.jobs(session.console(), found, now=session.now())


@app.command()
def show(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Show a job: attempts, VMs, checkpoints, the end of its log.

    Example: spothop show mnist-small
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.job(job)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        views.job(session.console(), found, now=session.now())


@app.command()
def logs(
    context: typer.Context,
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Of this attempt instead of the newest.")
    ] = None,
    as_json: NdjsonOption = False,
) -> None:
    """Print the log of a job: its setup and its process.

    Example: spothop logs mnist-small -f
    """
    with session_of(context).client() as client:
        for piece in client.logs(job, attempt=attempt, follow=follow):
            if as_json:
                _print_line({"attempt": piece.attempt, "text": piece.text})
            else:
                typer.echo(piece.text, nl=False)


@app.command()
def events(
    context: typer.Context,
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    as_json: NdjsonOption = False,
) -> None:
    """Print what happened to a job.

    Example: spothop events mnist-small -f
    """
    from spothop.cli import views
    from spothop.eventlog import EventFilter

    session = session_of(context)
    console = session.console()
    news = EventFilter()
    with session.client() as client:
        for event in client.follow_events(job) if follow else client.events(job):
            if as_json:
                _print_line(event.model_dump(mode="json"))
            elif news.is_news(event):
                console.print(views.event_line(event), soft_wrap=True)


@app.command()
def cancel(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Cancel a job; its committed checkpoints stay.

    Example: spothop cancel mnist-small
    """
    with session_of(context).client() as client:
        found = client.cancel(job)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        typer.echo(f"{found.id}: cancelling (now {found.state}); `spothop show` tells when it is")


@app.command()
def preempt(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="JOB|VM", help="A job, or the id of a VM.")],
    notice: Annotated[
        float | None,
        typer.Option(callback=_notice, metavar="SECONDS", help="Grace period of the test."),
    ] = None,
    no_notice: Annotated[bool, typer.Option("--no-notice", help="Kill at once.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a VM away, as its cloud would.

    This is the provider's own eviction test. Without options the notice is what the pool promises.

    Example: spothop preempt mnist-small --notice 5
    """
    from spothop.cli.preempt import preempt

    if no_notice and notice is not None:
        raise typer.BadParameter("give --notice or --no-notice, not both")
    with session_of(context).client() as client:
        vm = preempt(client, target, 0.0 if no_notice else notice)
    if as_json:
        _print_json(vm.model_dump(mode="json"))
    else:
        typer.echo(f"asked the cloud to preempt VM {vm.id} (now {vm.state})")


@app.command()
def inject(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="JOB|VM", help="A job, or the id of a VM.")],
    mttp: Annotated[
        str | None,
        typer.Option(help="Mean times to preemption: 600,20m; the last repeats. Exponential."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Measured lives. .csv: as many as it has, drawn by the seed from its Kaplan-Meier "
            "curve, which counts lives cut short. .json: the runs of a --zone, in their order."
        ),
    ] = None,
    zone: Annotated[str | None, typer.Option(help="Which zone of the trace.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same intervals.")
    ] = None,
    no_notice: Annotated[
        float, typer.Option(metavar="P", help="Share of preemptions without notice, 0 to 1.")
    ] = 0.0,
    stop: Annotated[bool, typer.Option("--stop", help="End what is under way.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Preempt a job's VMs again and again.

    To see how your own job takes that. The k-th interval runs from when the k-th VM came up to the
    cloud's own eviction test on it; a VM that does not train yet is spared until it does. It ends
    with the job, with the trace, or with --stop; a restart of the master does not end it. Of a VM
    it takes that one alone.

    Example: spothop inject mnist-small --mttp 10m,20m --seed 7 --no-notice 0.05
    """
    from spothop.cli import inject as injecting

    if stop and any(x is not None for x in (mttp, trace, zone, seed)):
        raise typer.BadParameter("--stop goes alone")
    wanted = None
    if not stop:
        wanted = injecting.request(
            mttp=mttp, trace=trace, zone=zone, seed=seed, no_notice=no_notice
        )
    with session_of(context).client() as client:
        found = injecting.inject(client, target, wanted)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        typer.echo(f"{found.job}: {injecting.words(found)}")


@app.command()
def pools(context: typer.Context, as_json: JsonOption = False) -> None:
    """List pools: prices, lives of VMs, notices.

    Example: spothop pools
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.pools()
    if as_json:
        _print_json([pool.model_dump(mode="json") for pool in found])
    else:
        views.pools(session.console(), found)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,  # the simulator has its own
)
def simulate(context: typer.Context) -> None:
    """Simulate a job under several policies: time, overhead, cost.

    Example: spothop simulate --preset thesis-117m --report out.html
    """
    from spothop.cli.simulate import simulate

    simulate(session_of(context), context.args)


@app.command()
def vms(context: typer.Context, as_json: JsonOption = False) -> None:
    """List VMs.

    Example: spothop vms
    """
    from spothop.cli import views

    session = session_of(context)
    with session.client() as client:
        found = client.vms()
    if as_json:
        _print_json([vm.model_dump(mode="json") for vm in found])
    else:
        views.vms(session.console(), found, now=session.now())


@app.command()
def download(
    context: typer.Context,
    job: JobArgument,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; default: the id of the job.")
    ] = None,
) -> None:
    """Fetch a job's newest checkpoint, verified, and its outputs.

    Example: spothop download mnist-small --to results
    """
    with session_of(context).client() as client:
        found = client.download(job, to)
    for problem in found.rejected:
        typer.echo(f"warning: {problem}", err=True)
    if found.checkpoint is not None:
        typer.echo(f"{found.checkpoint} (step {found.step:,})")
    for path in found.outputs:
        typer.echo(path)


@app.command()
def schema() -> None:
    """Print the JSON schema of the job file, for editors.

    Example: spothop schema > job.schema.json
    """
    from spothop.jobfile import json_schema

    _print_json(json_schema())


def _print_json(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def _print_line(value: Any) -> None:
    import json

    typer.echo(json.dumps(value))

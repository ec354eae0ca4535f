"""`spothop doctor`: what the master's cloud accounts lack, as an admin reads it."""

from __future__ import annotations

import json

import httpx
import pytest

from fakes.cli_master import Cli, in_80_columns, reply
from spothop.wire import CheckView, Verdict

QUOTA = CheckView(
    cloud="aws",
    subject="us-east-1: quota",
    verdict=Verdict.LOOK,
    fact="0 vCPUs for spot VMs of P5 types",
    hint="aws service-quotas request-service-quota-increase --service-code ec2 --quota-code "
    "L-C4BD4855 --desired-value N --region us-east-1",
)
OK = CheckView(
    cloud="aws", subject="credentials", verdict=Verdict.OK, fact="arn:aws:iam::1:user/x, account 1"
)
BUCKET = CheckView(
    cloud="aws",
    subject="bucket",
    verdict=Verdict.FAILED,
    fact="bucket: Not Found (404)",
    hint="is its name right, and ours the access?",
)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return in_80_columns(capsys, monkeypatch)


def test_each_check_is_a_line_with_its_hint_below(cli: Cli) -> None:
    cli.master.scripted["GET /checks"] = reply([OK, QUOTA])
    assert cli("doctor") == 0
    assert cli.out == (
        "ok      aws: credentials: arn:aws:iam::1:user/x, account 1\n"
        "look    aws: us-east-1: quota: 0 vCPUs for spot VMs of P5 types\n"
        "        hint: aws service-quotas request-service-quota-increase --service-code\n"
        "          ec2 --quota-code L-C4BD4855 --desired-value N --region us-east-1\n"
        "nothing failed\n"
    )


def test_what_failed_is_counted_and_is_the_exit_status(cli: Cli) -> None:
    cli.master.scripted["GET /checks"] = reply([OK, BUCKET])
    assert cli("doctor") == 1
    assert "FAILED  aws: bucket: bucket: Not Found (404)\n" in cli.out
    assert cli.out.endswith("1 of 2 checks failed\n")
    assert cli("doctor", "--json") == 1
    assert [CheckView.model_validate(each) for each in json.loads(cli.out)] == [OK, BUCKET]


def test_one_cloud_is_asked_for_by_name(cli: Cli) -> None:
    asked: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        return reply([OK])

    cli.master.scripted["GET /checks"] = answer
    assert cli("doctor", "--cloud", "aws") == 0
    assert asked[0].params["cloud"] == "aws"

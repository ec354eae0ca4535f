"""Does what a plan says, round after round, until nothing is left to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spothop_master.bootstrap.found import Call, Do, Found, Refused, Step
from spothop_master.bootstrap.removal import EMPTY
from spothop_master.clouds.aws.calls import Caller
from spothop_master.clouds.base import (
    Ambiguous,
    AuthFailed,
    CloudError,
    QuotaExceeded,
    Throttled,
    Unavailable,
)

PAUSE_S = 3.0
ROUNDS = 200
"""Ten minutes of waiting: a VM stops, with a backup, and ends in five."""
DONE = frozenset(
    {
        "BucketAlreadyOwnedByYou",
        "EntityAlreadyExists",
        "InvalidGroup.Duplicate",
        "InvalidPermission.Duplicate",
        "NoSuchEntity",
        "ParameterNotFound",
    }
)
"""It was done before, and AWS did not show it yet."""
NOT_YET = frozenset(
    {
        "DependencyViolation",
        "DeleteConflict",
        "IncorrectInstanceState",
        "IncorrectState",
        "InvalidInstanceID",
        "InvalidAllocationID.NotFound",
        "InvalidGroup.NotFound",
        "InvalidInstanceID.NotFound",
        "NoSuchBucket",
        "OperationAborted",
        "VolumeInUse",
    }
)
"""What it needs is not there yet, or still in use: the next round tries again."""
_PROFILE = "instanceprofile"
"""IAM tells EC2 of a new profile some seconds late (InvalidParameterValue)."""


class Failed(Exception):
    """AWS refused one call; everything before it is done."""

    def __init__(self, subject: str, call: str, error: CloudError) -> None:
        super().__init__(f"{subject}: {call}: {error}")
        self.hint = _hint(error)


@dataclass
class Runner:
    """`tell` is called with a line for each thing done. `software` is the content of the file."""

    calls: Caller
    region: str
    found: Found
    """What the plan that was shown was made of."""
    read: Callable[[Found, Collection[str]], Found]
    """What there is now, from what there was before, and the services touched since."""
    plan: Callable[[Found], Sequence[Step]]
    software: bytes
    tell: Callable[[str], None]
    sleep: Callable[[float], None]
    _done: set[tuple[str, str, str]] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)

    def run(self) -> Found:
        """What there is at the end. Raises Failed, Refused and CloudError."""
        pending: list[Step] = []
        last: CloudError | None = None
        for _ in range(ROUNDS):
            pending = [step for step in self.plan(self.found) if step.do is not Do.KEEP]
            if not pending:
                return self.found
            did, last = self._round(pending)
            if not did:
                self._tell_waiting(pending, last)
                self.sleep(PAUSE_S)
            touched = {call.service for step in pending for call in step.calls}
            self.found = self.read(self.found, touched)
        waits = "; ".join(step.subject for step in pending)
        fact = f"not done after {ROUNDS * PAUSE_S / 60:g} minutes: {waits}"
        raise Refused((f"{fact} ({last})" if last else fact, "run the same command again"))

    def _tell_waiting(self, pending: Sequence[Step], last: CloudError | None) -> None:
        """Once for each thing that is waited for."""
        shown = [f"{step.subject} ({step.reason})" for step in pending if step.do is Do.WAIT]
        line = "wait for " + ("; ".join(shown) or pending[0].subject)
        line += f": {last}" if last is not None else ""
        if line not in self._told:
            self._told.add(line)
            self.tell(line)

    def _round(self, steps: Sequence[Step]) -> tuple[bool, CloudError | None]:
        did, last = False, None
        for step in steps:
            for call in step.calls:
                if self._key(step, call) in self._done:
                    continue  # AWS does not show it yet
                try:
                    self._do(step, call)
                except CloudError as error:
                    if not _waits(error):
                        raise Failed(step.subject, _named(call), error) from error
                    last = error
                    break
                did = True
                self._done.add(self._key(step, call))
        return did, last

    def _do(self, step: Step, call: Call) -> None:
        try:
            if call.operation == EMPTY:
                empty_bucket(self.calls, self.region, call.params["Bucket"])
            elif call.operation == "put_object":
                self._send(call, Body=self.software)
            else:
                self._send(call)
        except CloudError as error:
            full = call.operation == "add_role_to_instance_profile"  # it has its one role
            if error.code not in DONE and not (full and error.code == "LimitExceeded"):
                raise
        told = f": {step.reason}" if step.reason else ""
        self.tell(f"{step.do.value} {step.subject} ({_named(call)}){told}")

    def _send(self, call: Call, **more: Any) -> None:
        self.calls.call(call.service, self.region, call.operation, **call.params, **more)

    def _key(self, step: Step, call: Call) -> tuple[str, str, str]:
        """A launch is the same whatever its token."""
        params = {name: value for name, value in call.params.items() if name != "ClientToken"}
        return step.subject, call.operation, json.dumps(params, sort_keys=True)


def empty_bucket(calls: Caller, region: str, bucket: str) -> None:
    """Everything in it. Raises CloudError."""
    for page in calls.pages("s3", region, "list_objects_v2", Bucket=bucket):
        keys = [{"Key": row["Key"]} for row in page.get("Contents", ())]
        if keys:
            what = {"Objects": keys, "Quiet": True}
            answer = calls.call("s3", region, "delete_objects", Bucket=bucket, Delete=what)
            for refused in answer.get("Errors", ()):
                told = f"{bucket}/{refused['Key']}: {refused.get('Message', '')}"
                raise AuthFailed(told, code=str(refused.get("Code", "")))


def _waits(error: CloudError) -> bool:
    late = error.code == "InvalidParameterValue" and _PROFILE in str(error).lower().replace(" ", "")
    unclear = isinstance(error, Ambiguous) and not str(error.code).startswith("Idempotent")
    busy = isinstance(error, (Throttled, Unavailable))
    return late or unclear or busy or error.code in NOT_YET


def _named(call: Call) -> str:
    """As AWS's policies name it: `iam:CreateRole`."""
    words = "".join(word.capitalize() for word in call.operation.split("_"))
    return f"{call.service}:{words}"


def _hint(error: CloudError) -> str:
    if isinstance(error, AuthFailed):
        return "use credentials that may do this, then run the same command: it goes on from here"
    if isinstance(error, QuotaExceeded):
        return "ask AWS for a higher quota (Service Quotas), then run the same command"
    by_code: Mapping[str | None, str] = {
        "BucketAlreadyExists": "another account has a bucket of this name; choose --bucket NAME",
        "InvalidBucketName": "choose another --bucket NAME: 3 to 63 of a-z, 0-9 and -",
    }
    return by_code.get(error.code, "the words above are AWS's; run the same command to go on")

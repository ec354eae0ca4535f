"""The mixin that lets IAM decide about the calls of the layer's services, once that is switched on
(`Emulator.enforce_iam`, which is moto's `POST /moto-api/reset-auth`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from moto import settings
from moto.iam.access_control import IAMRequest
from moto.iam.models import iam_backends
from werkzeug.exceptions import HTTPException

from fakes.aws import iam
from fakes.aws.errors import AwsError
from fakes.aws.fleet import ACCOUNT


class Refused(HTTPException):
    """An answer of ours from within moto, which knows how to hand on such an exception."""

    def __init__(self, error: AwsError, protocol: str) -> None:
        self.code = error.status
        self.kind, body = error.body(protocol)
        super().__init__(body)

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [("Content-Type", self.kind)]


class Enforced:
    """Beside a response class of moto's."""

    protocol: ClassVar[str] = "json"
    denied: ClassVar[str] = "AccessDeniedException"

    def needs(self, action: str) -> Iterable[iam.Need]:
        """What this call must be allowed to do."""
        return [iam.Need(action=f"{self.service_name}:{action}")]  # type: ignore[attr-defined]

    def _authenticate_and_authorize_normal_action(self: Any, resource: str = "*") -> None:
        if not enforced():
            return
        asked = self._iam_request()
        documents = list(iam.documents_of(asked._access_key.collect_policies()))
        for need in self.needs(self._get_action()):
            if not iam.allows(documents, need):
                raise Refused(
                    AwsError(
                        self.denied,
                        "You are not authorized to perform this operation. User:"
                        f" {asked._access_key.arn} is not authorized to perform: {need.action} on"
                        f" resource: {need.resource}",
                    ),
                    self.protocol,
                )

    def _iam_request(self: Any) -> Any:
        """moto's, whose signature is right. Raises HTTPException."""
        asked = IAMRequest(
            account_id=self.current_account,
            method=self.method,
            path=self.raw_path,
            data=self.data,
            body=self.raw_body,
            headers=self.headers,
            action=self._get_action(),
        )
        asked.check_signature()
        return asked


def enforced() -> bool:
    return bool(settings.INITIAL_NO_AUTH_ACTION_COUNT == 0)


def role_documents(role: str) -> Iterator[str]:
    """The policies of a role."""
    backend = iam_backends[ACCOUNT]["aws"]
    name = role.rpartition("/")[2]
    inline = [backend.get_role_policy(name, one)[1] for one in backend.list_role_policies(name)]
    attached, _ = backend.list_attached_role_policies(name)
    return iam.documents_of([*inline, *attached])

"""One request as the layer sees it: whose, to which service and action, with which parameters."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl

from fakes.aws import wire
from fakes.aws.errors import AwsError

_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request")
_BOTO_NAMES = {"servicequotas": "service-quotas"}
"""Where the name that signs is not botocore's."""
FORMS = ("ec2", "query")
"""Protocols that send forms."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one API call asks for. `params` have the names of the API, as boto3 takes them."""

    service: str
    action: str
    """Such as RunInstances; of S3 and of what nobody signed `METHOD /path`."""
    region: str = ""
    key: str = ""
    """The access key id."""
    protocol: str = "rest-xml"
    params: dict[str, Any] = field(default_factory=dict)
    zone: str | None = None
    """Of a launch: its zone, if it names one or a subnet."""
    refused: AwsError | None = None
    """It is none that the service's model knows."""

    @property
    def vm_type(self) -> str | None:
        return self.params.get("InstanceType")

    @property
    def spot(self) -> bool:
        return "InstanceMarketOptions" in self.params


def read(environ: dict[str, Any]) -> Call:
    """What this request is; its body stays readable."""
    found = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    plain = f"{environ['REQUEST_METHOD']} {environ.get('PATH_INFO', '')}"
    if found is None:
        return Call(service="", action=plain)
    key, region, service = found.groups()
    whose = {"service": service, "region": region, "key": key}
    if service == "s3":
        return Call(**whose, action=plain)
    from moto.core.utils import get_service_model

    model: Any = get_service_model(_BOTO_NAMES.get(service, service))
    protocol, body = model.resolved_protocol, _body(environ)
    form = dict(parse_qsl(body.decode(), keep_blank_values=True)) if protocol in FORMS else {}
    if protocol in FORMS:
        action = form.get("Action", "")
    elif protocol == "json":
        action = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    else:
        action = _routed(environ, service, plain)
    call = Call(**whose, action=action, protocol=protocol)
    if action not in model.operation_names:
        return replace(call, refused=AwsError("InvalidAction", f"The action {action} is not valid"))
    shape = model.operation_model(action).input_shape
    try:
        params = wire.from_form(shape, form, protocol) if form else wire.from_json(shape, body)
    except AwsError as refused:
        return replace(call, refused=refused)
    zone = _zone(region, params) if action == "RunInstances" else None
    return replace(call, params=params, zone=zone)


def _body(environ: dict[str, Any]) -> bytes:
    size = int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(size) if size else b""
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _routed(environ: dict[str, Any], service: str, plain: str) -> str:
    from moto.core.request import Request
    from moto.core.routing import get_service_router
    from werkzeug.exceptions import NotFound

    try:
        operation, _ = get_service_router(_BOTO_NAMES.get(service, service)).match(
            Request(environ.copy())
        )
    except (NotFound, NotImplementedError):
        return plain
    return str(operation.name)


def _zone(region: str, params: dict[str, Any]) -> str | None:
    named: str | None = params.get("Placement", {}).get("AvailabilityZone")
    nics = params.get("NetworkInterfaces") or [{}]
    subnet_id = params.get("SubnetId") or nics[0].get("SubnetId")
    if named or not subnet_id:
        return named
    from moto.backends import get_backend

    subnets = get_backend("ec2")["123456789012"][region].subnets
    return next(
        (by_id[subnet_id].availability_zone for by_id in subnets.values() if subnet_id in by_id),
        None,
    )

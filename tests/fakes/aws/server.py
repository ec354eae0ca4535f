"""The emulator: moto's server on a port of loopback, and the layer before it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from email.utils import formatdate
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

import httpx

from fakes.aws import calls, pricing
from fakes.aws.calls import Call
from fakes.aws.errors import AwsError, by_code
from fakes.aws.fleet import ACCOUNT, Clock, Fleet
from fakes.aws.script import Fault, Script

REGION = "us-east-1"
Environ = dict[str, Any]
StartResponse = Callable[..., Any]


class Emulator:
    """One AWS account on loopback. `script`, `fleet`, `clock`, `quotas` and `prices` (on demand, by
    region and VM type) are for tests to set; `calls` is everything that was asked."""

    def __init__(self) -> None:
        from moto import settings
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler
        from werkzeug.serving import make_server

        class Handler(MotoRequestHandler):
            def log(self, *args: Any, **kwargs: Any) -> None:
                """Not a line for each request."""

            def date_time_string(_handler, timestamp: float | None = None) -> str:
                """Of the Date header: the emulator's time, not this machine's."""
                return formatdate(self.clock() if timestamp is None else timestamp, usegmt=True)

        self._were = settings.ENABLE_AMI_VALIDATION, settings.ec2_load_default_amis
        settings.ENABLE_AMI_VALIDATION = True
        # 1,300 images, made anew at each reset; we have those that others.LayeredSsm names.
        settings.ec2_load_default_amis = lambda: False
        self._bound: dict[str, Any] = {}
        self._clients: dict[tuple[Any, ...], Any] = {}
        self._loader: Any = None
        self._moto = DomainDispatcherApplication(self._create_app)
        self._fill()
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def _fill(self) -> None:
        self.script = Script()
        self.clock = Clock()
        self.fleet = Fleet(self.clock)
        self.quotas: dict[str, float] = {}
        self.prices: dict[str, dict[str, float]] = {}
        self.calls: list[Call] = []
        for name, value in (("fleet", self.fleet), ("quotas", self.quotas)):
            for bound in self._bound.values():
                setattr(bound, name, value)

    def __enter__(self) -> Emulator:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from moto import settings

        self.script.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        settings.ENABLE_AMI_VALIDATION, settings.ec2_load_default_amis = self._were

    def enforce_iam(self) -> None:
        """From now on calls need valid keys, and policies that allow them; `reset` ends it."""
        httpx.post(f"{self.endpoint}/moto-api/reset-auth", content="0", trust_env=False)

    def reset(self) -> None:
        """An empty account in which nothing goes wrong."""
        from moto import settings
        from moto.moto_api._internal.models import moto_api_backend

        self.script.heal()
        settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")
        moto_api_backend.reset()
        self._fill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def session(self, **keys: str) -> Any:
        """Of boto3, with keys that work, or with these (as its arguments are called)."""
        import boto3
        import botocore.session

        known = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", **keys}
        made = botocore.session.Session()
        # The models of services, read once: they are the third of a second that a client takes.
        self._loader = self._loader or made.get_component("data_loader")
        made.register_component("data_loader", self._loader)
        return boto3.Session(**known, region_name=REGION, botocore_session=made)

    def client(self, service: str, region: str = REGION, **keys: str) -> Any:
        """Of boto3, without retries; made once, because it takes a third of a second."""
        asked = (service, region, *sorted(keys.items()))
        if asked not in self._clients:
            self._clients[asked] = self._client(service, region, keys)
        return self._clients[asked]

    def _client(self, service: str, region: str, keys: dict[str, str]) -> Any:
        from botocore.config import Config

        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
        made = self.session(**keys)
        return made.client(service, region_name=region, endpoint_url=self.endpoint, config=config)

    def assume_role(self, role: str, *, session: str) -> Any:
        """What STS gives for a role: credentials as its API returns them. Not counted, and not
        asked whether IAM allows it: EC2 does this by itself for its VMs."""
        from moto.sts.models import sts_backends

        made = sts_backends[ACCOUNT]["aws"].assume_role(
            region_name=REGION,
            role_session_name=session,
            role_arn=f"arn:aws:iam::{ACCOUNT}:role/{role}",
            policy=None,
            duration=3600,
            external_id=None,
        )
        return {
            "AccessKeyId": made.access_key_id,
            "SecretAccessKey": made.secret_access_key,
            "SessionToken": made.session_token,
            "Expiration": made.expiration,
        }

    def count(self, action: str = "*") -> int:
        """How many calls of this action (a pattern of fnmatch) came."""
        return sum(fnmatchcase(call.action, action) for call in self.calls)

    # --- the layer ------------------------------------------------------------------------------

    def _create_app(self, service: Any) -> Any:
        """moto's application for a service, with our class in place of its own."""
        from moto.core.utils import convert_to_flask_response
        from moto.moto_server.werkzeug_app import create_backend_app

        app = create_backend_app(service)
        if (bound := self._layered(service)) is not None:
            for name, view in app.view_functions.items():
                handler = getattr(bound, view.callback.__name__)
                app.view_functions[name] = convert_to_flask_response(handler)
        return app

    def _layered(self, service: str) -> Any:
        from fakes.aws import ec2, others

        layered: dict[str, Any] = {
            "ec2": ec2.LayeredEc2,
            "fis": others.LayeredFis,
            "s3": others.LayeredS3,
            "servicequotas": others.LayeredQuotas,
            "ssm": others.LayeredSsm,
        }
        if service not in layered:
            return None
        fields = {"fleet": self.fleet, "quotas": self.quotas}
        self._bound[service] = type(layered[service].__name__, (layered[service],), fields)
        return self._bound[service]

    def _answer(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        call = calls.read(environ)
        if call.service:
            self.calls.append(call)
        fault = self.script.strike(call) if call.service else None
        if fault is not None and not fault.after:
            if fault.stall:
                self.script.wait_for_release()
            else:
                return _instead(fault, call, environ, start)
        if call.refused is not None:
            return _refuse(call.refused, call, start)
        if call.service == "pricing":
            return _send(pricing.get_products(call.params, self.prices), start)
        if fault is None or not fault.after:
            return self._moto(environ, start)
        _drain(self._moto(environ, lambda *args: None))
        if fault.stall:
            self.script.wait_for_release()
        return _instead(fault, call, environ, start)


def _drain(body: Iterable[bytes]) -> None:
    for _ in body:
        pass


def _instead(fault: Fault, call: Call, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    if not fault.code:
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError("by script")
    error = by_code(fault.code, vm_type=call.vm_type, zone=call.zone)
    return _refuse(AwsError(error.code, fault.message or error.message), call, start)


def _send(text: str, start: StartResponse) -> Iterable[bytes]:
    body = text.encode()
    kind = "application/x-amz-json-1.1"
    start("200 OK", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _refuse(error: AwsError, call: Call, start: StartResponse) -> Iterable[bytes]:
    kind, text = error.body(call.protocol)
    body = text.encode()
    headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    start(f"{error.status} {error.code}", headers)
    return [body]

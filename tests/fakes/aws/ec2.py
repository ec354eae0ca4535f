"""moto's EC2 with methods of ours where moto lacks something or is wrong. Parsing, serialising and
IAM stay moto's."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Iterable
from typing import Any, ClassVar

from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_dict_attribute_mapping
from moto.iam.models import iam_backends

from fakes.aws import iam
from fakes.aws.enforced import Enforced, Refused
from fakes.aws.errors import AwsError, by_code
from fakes.aws.fleet import ACCOUNT, Fleet, Life, SpotRequest, moment

_PARAMETER = "resolve:ssm:"
USER_DATA_LIMIT = 16384
TOKEN_LIMIT = 64
_ID = re.compile(r"i-[0-9a-f]{8}([0-9a-f]{9})?")


class LayeredEc2(Enforced, EC2Response):
    """One request; `fleet` is the emulator's."""

    fleet: ClassVar[Fleet]
    protocol = "ec2"
    denied = "UnauthorizedOperation"
    RESPONSE_KEY_PATH_TO_TRANSFORMER: ClassVar[dict[str, Any]] = {
        path: how
        for path, how in EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER.items()
        if path != "RunInstances.Reservation.Instances.Instance.State"  # a repeated one tells
    }

    def call_action(self) -> Any:
        with self.fleet.lock:
            self.fleet.settle()
            return super().call_action()

    def _authenticate_and_authorize_normal_action(self, resource: str = "*") -> None:
        super()._authenticate_and_authorize_normal_action(resource)
        checks_itself = self._get_action() in ("RunInstances", "TerminateInstances")
        if self._get_param("DryRun", False) and not checks_itself:
            raise Refused(by_code("DryRunOperation"), "ec2")

    def needs(self, action: str) -> Iterable[iam.Need]:
        if action == "RunInstances":
            return iam.of_launch(self.region, self.params, self._profile_role())
        if action in ("TerminateInstances", "GetConsoleOutput"):
            ids = self._get_param("InstanceIds") or [self._get_param("InstanceId")]
            known = self.fleet.seen(self.region)
            return [
                iam.of_vm(f"ec2:{action}", self.region, vm_id, known[vm_id].tags)
                for vm_id in ids
                if vm_id in known
            ]
        if action in iam.REMOVED:
            name = self._get_param(iam.REMOVED[action][1])
            tags = ec2_backends[ACCOUNT][self.region].describe_tags({"resource-id": [name]})
            found = {tag["key"]: tag["value"] for tag in tags}
            return [iam.of_removal(action, self.region, name, found)]
        return super().needs(action)

    def _profile_role(self) -> str | None:
        named = self._get_param("IamInstanceProfile.Name") or self._get_param(
            "IamInstanceProfile.Arn"
        )
        if not named:
            return None
        profile = iam_backends[ACCOUNT]["aws"].get_instance_profile(named.rpartition("/")[2])
        return str(profile.roles[0].name)

    # --- launch ---------------------------------------------------------------------------------

    def run_instances(self) -> ActionResult:
        params: dict[str, Any] = {**self.params}
        try:
            self._check_launch(params)
            if params.get("DryRun"):
                raise DryRunClientError
            token = params.get("ClientToken", "")
            known = self.fleet.repeated(self.region, token, params) if token else None
        except AwsError as error:
            raise Refused(error, "ec2") from None
        if known is not None:
            return ActionResult(known)
        if params.get("ImageId", "").startswith(_PARAMETER):
            name = params["ImageId"].removeprefix(_PARAMETER)
            self.params["ImageId"] = public_image(self.region, name)
        result = super().run_instances()
        self.fleet.launched(result.result, self.region, params)
        return result

    def _check_launch(self, params: dict[str, Any]) -> None:
        token, vm_type = params.get("ClientToken", ""), params.get("InstanceType", "m1.small")
        if len(token) > TOKEN_LIMIT or not token.isascii():
            raise AwsError("InvalidParameterValue", "Invalid value for clientToken")
        if len(base64.b64decode(params.get("UserData", ""))) > USER_DATA_LIMIT:
            raise AwsError("InvalidParameterValue", "User data is limited to 16384 bytes")
        zone = self._zone(params)
        offered = _offers(self.region)
        if (vm_type, zone) not in offered:
            if not any(of_zone == zone for _, of_zone in offered):
                raise AwsError("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
            raise by_code("Unsupported", vm_type=vm_type, zone=zone)
        options = params.get("InstanceMarketOptions", {})
        if options.get("MarketType") != "spot":
            return
        most, price = (
            options.get("SpotOptions", {}).get("MaxPrice"),
            self.fleet.price_of(vm_type, zone),
        )
        if most is not None and float(most) < price:
            raise AwsError(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {most} is lower than the minimum required Spot request"
                f" fulfillment price of {price}.",
            )

    def _zone(self, params: dict[str, Any]) -> str:
        nics = params.get("NetworkInterfaces") or [{}]
        subnet_id = params.get("SubnetId") or nics[0].get("SubnetId")
        named = params.get("Placement", {}).get("AvailabilityZone")
        if subnet_id:
            return str(self.ec2_backend.get_subnet(subnet_id).availability_zone)
        return str(named or f"{self.region}a")

    # --- lists ----------------------------------------------------------------------------------

    def describe_instances(self) -> ActionResult:
        found = self._known(self._get_param("InstanceIds", []))
        rows = [life for life in found if _passes(life, self._filters_from_querystring())]
        most, start = int(self._get_param("MaxResults", 1000)), int(self._get_param("NextToken", 0))
        page, more = rows[start : start + most], len(rows) > start + most
        reservations = [
            {
                "ReservationId": f"r-{life.id[2:]}",
                "OwnerId": life.instance.owner_id,
                "Instances": [life.instance],
            }
            for life in page
        ]
        token = str(start + most) if more else None
        return ActionResult({"Reservations": reservations, "NextToken": token})

    def _known(self, ids: list[str]) -> list[Life]:
        """These VMs, or all. Raises EC2ClientError for ids that EC2 does not know."""
        seen = self.fleet.seen(self.region)
        for vm_id in ids:
            if not _ID.fullmatch(vm_id):
                raise EC2ClientError("InvalidInstanceID.Malformed", f'Invalid id: "{vm_id}"')
        if missing := [vm_id for vm_id in ids if vm_id not in seen]:
            raise EC2ClientError(
                "InvalidInstanceID.NotFound",
                f"The instance ID{'s' * (len(missing) > 1)} '{', '.join(missing)}'"
                f" do{'es' * (len(missing) == 1)} not exist",
            )
        return [seen[vm_id] for vm_id in ids] if ids else list(seen.values())

    def describe_spot_instance_requests(self) -> ActionResult:
        ids = self._get_param("SpotInstanceRequestIds", [])
        rows = [_shown(request, life) for request, life in self.fleet.requests(self.region)]
        if missing := set(ids) - {row["SpotInstanceRequestId"] for row in rows}:
            raise EC2ClientError(
                "InvalidSpotInstanceRequestID.NotFound",
                f"The spot instance request ID '{min(missing)}' does not exist",
            )
        filters = self._filters_from_querystring()
        return ActionResult(
            {
                "SpotInstanceRequests": [
                    row
                    for row in rows
                    if (not ids or row["SpotInstanceRequestId"] in ids)
                    and _matches(_request_filter(row), filters)
                ]
            }
        )

    def describe_spot_price_history(self) -> ActionResult:
        """The last price before `StartTime`, and one for each hour since."""
        types, filters = self._get_param("InstanceTypes", []), self._filters_from_querystring()
        zone, now = self._get_param("AvailabilityZone"), moment(self.fleet.clock())
        start = self._get_param("StartTime") or now
        hours = max(0, int((now - start).total_seconds() // 3600))
        rows = []
        for vm_type, of_zone in sorted(_offers(self.region)):
            asked = {"instance-type": vm_type, "availability-zone": of_zone}
            if (types and vm_type not in types) or zone not in (None, of_zone):
                continue
            if not _matches(lambda name, asked=asked: [asked.get(name, "Linux/UNIX")], filters):
                continue
            price = self.fleet.price_of(vm_type, of_zone)
            rows += [
                {
                    "InstanceType": vm_type,
                    "AvailabilityZone": of_zone,
                    "ProductDescription": "Linux/UNIX",
                    "SpotPrice": f"{price:.6f}",
                    "Timestamp": moment(self.fleet.clock() - 3600 * ago),
                }
                for ago in range(hours + 1)
            ]
        most, begin = (
            int(self._get_param("MaxResults", 1000)),
            int(self._get_param("NextToken") or 0),
        )
        token = str(begin + most) if len(rows) > begin + most else ""
        return ActionResult({"SpotPriceHistory": rows[begin : begin + most], "NextToken": token})

    # --- the rest of a VM's life ----------------------------------------------------------------

    def terminate_instances(self) -> ActionResult:
        lives = self._known(self._get_param("InstanceIds", []))
        self.error_on_dryrun()
        changed = [(life, *self.fleet.terminate(life.id)) for life in lives]
        self.fleet.settle()
        codes = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopped": 80}
        return ActionResult(
            {
                "TerminatingInstances": [
                    {
                        "InstanceId": life.id,
                        "PreviousState": {"Code": codes[before], "Name": before},
                        "CurrentState": {"Code": codes[after], "Name": after},
                    }
                    for life, before, after in changed
                ]
            }
        )

    def get_console_output(self) -> ActionResult:
        [life] = self._known([self._get_param("InstanceId")])
        output = Base64EncodedString.from_raw_string(life.console) if life.console else None
        return ActionResult(
            {"InstanceId": life.id, "Timestamp": moment(self.fleet.clock()), "Output": output}
        )


@functools.cache
def _offers(region: str) -> frozenset[tuple[str, str]]:
    """Types and the zones that have them; moto's list is AWS's own."""
    rows = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return frozenset((row["InstanceType"], row["Location"]) for row in rows)


_FILTERS = {
    "client-token": lambda life: life.instance.client_token,
    "instance-lifecycle": lambda life: "spot" if life.request else None,
    "spot-instance-request-id": lambda life: life.request.id if life.request else None,
    "instance-state-code": lambda life: str(life.instance._state.code),
    "reason": lambda life: life.instance._reason,
}
"""Of DescribeInstances, what moto does not know or answers HTTP 500 to."""


def public_image(region: str, parameter: str) -> str:
    """The id of the image that this public parameter of SSM names; registered when it is asked
    for first."""
    backend = ec2_backends[ACCOUNT][region]
    known = [ami for ami in backend.amis.values() if ami.name == parameter]
    return str((known[0] if known else backend.register_image(name=parameter)).id)


def _passes(life: Life, filters: dict[str, Any]) -> bool:
    def value(name: str) -> list[Any]:
        if name == "tag-key":
            return list(life.tags)
        if name.startswith("tag:"):
            return [life.tags.get(name[4:])]
        if name in _FILTERS:
            return [_FILTERS[name](life)]
        if name not in filter_dict_attribute_mapping:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
        found: Any = [life.instance]
        for part in filter_dict_attribute_mapping[name].split("."):
            nested = [getattr(item, part, None) for item in found]
            found = [one for item in nested for one in (item if isinstance(item, list) else [item])]
        return list(found)

    return _matches(value, filters)


def _matches(value: Any, filters: dict[str, Any]) -> bool:
    """Filters are joined by AND, the values of one by OR; `*` and `?` are wild."""
    return all(
        any(
            found is not None and _wild(pattern).fullmatch(str(found))
            for found in value(name)
            for pattern in patterns
        )
        for name, patterns in filters.items()
    )


def _wild(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _shown(request: SpotRequest, life: Life) -> dict[str, Any]:
    return {
        "SpotInstanceRequestId": request.id,
        "InstanceId": life.id,
        "State": request.state,
        "Status": {
            "Code": request.status,
            "Message": request.status,
            "UpdateTime": moment(request.updated_at),
        },
        "CreateTime": moment(request.created_at),
        "Type": request.options.get("SpotInstanceType", "one-time"),
        "SpotPrice": request.options.get("MaxPrice"),
        "InstanceInterruptionBehavior": request.options.get(
            "InstanceInterruptionBehavior", "terminate"
        ),
        "LaunchedAvailabilityZone": life.instance.placement.zone,
        "ProductDescription": "Linux/UNIX",
        "Tags": [{"Key": key, "Value": value} for key, value in request.tags.items()],
    }


def _request_filter(row: dict[str, Any]) -> Any:
    tags = {tag["Key"]: tag["Value"] for tag in row["Tags"]}
    plain = {
        "spot-instance-request-id": row["SpotInstanceRequestId"],
        "instance-id": row["InstanceId"],
        "state": row["State"],
        "status-code": row["Status"]["Code"],
        "type": row["Type"],
        "launched-availability-zone": row["LaunchedAvailabilityZone"],
    }

    def value(name: str) -> list[Any]:
        if name.startswith("tag:"):
            return [tags.get(name[4:])]
        if name not in plain:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
        return [plain[name]]

    return value

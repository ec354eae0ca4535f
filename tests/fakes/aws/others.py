"""FIS, S3, Service Quotas and SSM: moto's classes with what moto lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, ClassVar

from moto.core.responses import ActionResult
from moto.fis.responses import FISResponse
from moto.s3.responses import S3Response
from moto.servicequotas.responses import ServiceQuotasResponse
from moto.ssm.responses import SimpleSystemManagerResponse

from fakes.aws import iam
from fakes.aws.ec2 import public_image
from fakes.aws.enforced import Enforced, enforced, role_documents
from fakes.aws.fleet import Fleet, Life

INTERRUPTION = "aws:ec2:send-spot-instance-interruptions"
SEND = "ec2:SendSpotInstanceInterruptions"
BY_EXPERIMENT = "instance-terminated-by-experiment"
_MINUTES = re.compile(r"PT(\d+)M")


class LayeredFis(Enforced, FISResponse):
    """Experiments that interrupt spot VMs do so (moto only keeps their records)."""

    fleet: ClassVar[Fleet]
    protocol = "rest-json"

    def needs(self, action: str) -> Iterable[iam.Need]:
        return iam.of_fis(action, self.region, json.loads(self.body or "{}"))

    def start_experiment(self) -> str:
        answer = super().start_experiment()
        experiment = json.loads(answer)["experiment"]
        for action in experiment["actions"].values():
            if action["actionId"] != INTERRUPTION:
                continue
            found = _MINUTES.fullmatch(action["parameters"]["durationBeforeInterruption"])
            assert found is not None, "durationBeforeInterruption is PT2M to PT15M"
            assert 2 <= int(found[1]) <= 15
            target = experiment["targets"][action["targets"]["SpotInstances"]]
            documents = list(role_documents(experiment["roleArn"])) if enforced() else None
            for life in self._targets(target):
                need = iam.of_vm(SEND, self.region, life.id, life.tags)
                if documents is not None and not iam.allows(documents, need):
                    continue  # the experiment fails, and says so in its record
                after_s = 60.0 * int(found[1])
                self.fleet.interrupt(life.id, after_s=after_s, status=BY_EXPERIMENT)
        return answer

    def _targets(self, target: dict[str, Any]) -> list[Life]:
        arns, tags = target.get("resourceArns", []), target.get("resourceTags", {})
        found = [
            life
            for life in self.fleet.seen(self.region).values()
            if life.request is not None
            and life.ending_at is None
            and (not arns or any(arn.endswith(f"instance/{life.id}") for arn in arns))
            and tags.items() <= life.tags.items()
        ]
        mode = target.get("selectionMode", "ALL")
        return found[: int(mode[6:-1])] if mode.startswith("COUNT(") else found


QUOTAS = {
    "L-34B43A08": "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-C4BD4855": "All P5 Spot Instance Requests",
    "L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-417A185B": "Running On-Demand P instances",
}
"""vCPUs of a region, by the codes of the Service Quotas documentation."""


class LayeredQuotas(Enforced, ServiceQuotasResponse):
    """EC2's quotas for vCPUs; `quotas` of the emulator sets them."""

    def needs(self, action: str) -> Iterable[iam.Need]:
        return [iam.Need(action=f"servicequotas:{action}")]

    quotas: ClassVar[dict[str, float]]

    def list_service_quotas(self) -> str:
        return json.dumps({"Quotas": [self._quota(code) for code in QUOTAS]})

    def get_service_quota(self) -> str:
        code = json.loads(self.body)["QuotaCode"]
        return (
            json.dumps({"Quota": self._quota(code)})
            if code in QUOTAS
            else super().get_service_quota()
        )

    def _quota(self, code: str) -> dict[str, Any]:
        arn = f"arn:aws:servicequotas:{self.region}:{self.current_account}:ec2/{code}"
        return {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": arn,
            "QuotaCode": code,
            "QuotaName": QUOTAS[code],
            "Value": self.quotas.get(code, 0.0),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


class LayeredS3(S3Response):
    """DeleteObjects needs the right to delete objects; moto asks for it on the bucket."""

    def _authenticate_and_authorize_s3_action(
        self, bucket_name: str | None = None, key_name: str | None = None
    ) -> None:
        whole_bucket = self.data.get("Action") == "DeleteObject" and key_name is None
        super()._authenticate_and_authorize_s3_action(
            bucket_name, "*" if whole_bucket else key_name
        )


_IMAGES = ("/aws/service/canonical/ubuntu/", "/aws/service/deeplearning/")


class LayeredSsm(Enforced, SimpleSystemManagerResponse):
    """Public parameters that name images: moto has those of Amazon Linux only. An image that is
    asked for is registered, so that EC2 knows it."""

    def needs(self, action: str) -> Iterable[iam.Need]:
        names = self._get_param("Names") or [self._get_param("Name")]
        return [
            iam.Need(
                action=f"ssm:{action}",
                # a public parameter belongs to no account
                resource=iam.arn("ssm", self.region, f"parameter{name}", account=""),
            )
            for name in names
        ]

    def get_parameter(self) -> ActionResult:
        name = self._get_param("Name")
        if not name.startswith(_IMAGES):
            return super().get_parameter()
        return ActionResult({"Parameter": self._image(name)})

    def get_parameters(self) -> ActionResult:
        names = self._get_param("Names")
        public = [name for name in names if name.startswith(_IMAGES)]
        if not public:
            return super().get_parameters()
        rest = [name for name in names if name not in public]
        found = self.ssm_backend.get_parameters(rest)
        rows = [value.response_object(False, self.region) for value in found.values()]
        return ActionResult(
            {
                "Parameters": [self._image(name) for name in public] + rows,
                "InvalidParameters": [name for name in rest if name not in found],
            }
        )

    def _image(self, name: str) -> dict[str, Any]:
        arn = f"arn:aws:ssm:{self.region}::parameter{name}"
        return {
            "Name": name,
            "Type": "String",
            "Value": public_image(self.region, name),
            "Version": 1,
            "ARN": arn,
        }

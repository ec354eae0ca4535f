"""What IAM says to a call: signature and policies from moto, decided as AWS documents it.

moto looks at the action alone, and denies what any condition does not hold for, in a statement that
allows too. The policies of deploy/aws rest on resources and conditions, so for the services of the
layer the decision is made here, by "Policy evaluation logic" of the IAM User Guide; which resources
and condition keys an action has is told by the Service Authorization Reference. S3, STS and IAM
itself stay moto's: actions and resources, no conditions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fakes.aws.fleet import ACCOUNT

Statement = Mapping[str, Any]
Context = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Need:
    """One thing that a call must be allowed to do."""

    action: str
    resource: str = "*"
    context: Context = field(default_factory=dict)


def allows(documents: Iterable[str], need: Need) -> bool:
    """Whether these policies allow it: a statement does, and none denies."""
    found = [
        statement["Effect"]
        for document in documents
        for statement in _listed(json.loads(document)["Statement"])
        if _applies(statement, need)
    ]
    return "Allow" in found and "Deny" not in found


def documents_of(policies: Iterable[Any]) -> Iterator[str]:
    """Of moto's several kinds of policies."""
    for policy in policies:
        if isinstance(policy, str):
            yield policy
        elif isinstance(policy, dict):
            yield policy["policy_document"]
        else:
            yield next(version.document for version in policy.versions if version.is_default)


def _applies(statement: Statement, need: Need) -> bool:
    return (
        any(_like(pattern.lower(), need.action.lower()) for pattern in _listed(statement["Action"]))
        and any(_like(pattern, need.resource) for pattern in _listed(statement["Resource"]))
        and all(
            _holds(operator, key, _listed(values), need.context)
            for operator, keys in statement.get("Condition", {}).items()
            for key, values in keys.items()
        )
    )


def _holds(operator: str, key: str, values: list[str], context: Context) -> bool:
    found = {name.lower(): value for name, value in context.items()}.get(key.lower())
    if operator == "Null":
        return (found is None) == (values[0] == "true")
    if operator.endswith("IfExists"):
        return found is None or _holds(operator.removesuffix("IfExists"), key, values, context)
    if operator == "StringEquals":
        return found in values
    if operator in ("StringLike", "ArnLike"):
        return found is not None and any(_like(value, found) for value in values)
    raise NotImplementedError(f"the condition {operator}: write it here, do not assume it")


def _like(pattern: str, value: str) -> bool:
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, value, re.DOTALL) is not None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def arn(service: str, region: str, rest: str, account: str = ACCOUNT) -> str:
    return f"arn:aws:{service}:{region}:{account}:{rest}"


def role_arn(name_or_arn: str) -> str:
    named = name_or_arn.rpartition("/")[2]
    return arn("iam", "", f"role/{named}")


def tags_of(specs: Iterable[Mapping[str, Any]], kind: str, prefix: str) -> dict[str, str]:
    return {
        f"{prefix}/{tag['Key']}": tag["Value"]
        for spec in specs
        if spec.get("ResourceType") == kind
        for tag in spec.get("Tags", [])
    }


def of_launch(region: str, params: Mapping[str, Any], profile_role: str | None) -> Iterator[Need]:
    """RunInstances: everything that it makes and uses, the tags, and the role that it hands on."""
    specs = params.get("TagSpecifications", [])
    made = ["instance", "volume", "network-interface"]
    made += ["spot-instances-request"] if "InstanceMarketOptions" in params else []
    for kind in made:
        context = tags_of(specs, kind, "aws:RequestTag")
        resource = arn("ec2", region, f"{kind}/*")
        yield Need(action="ec2:RunInstances", resource=resource, context=context)
        if context:
            by_launch = {**context, "ec2:CreateAction": "RunInstances"}
            yield Need(action="ec2:CreateTags", resource=resource, context=by_launch)
    image = arn("ec2", region, f"image/{params.get('ImageId', '')}", account="")
    yield Need(action="ec2:RunInstances", resource=image)
    used = [("subnet", [params.get("SubnetId", "default")])]
    used.append(("security-group", params.get("SecurityGroupIds") or ["default"]))
    for kind, names in used:
        for name in names:
            yield Need(action="ec2:RunInstances", resource=arn("ec2", region, f"{kind}/{name}"))
    if profile_role is not None:
        to_ec2 = {"iam:PassedToService": "ec2.amazonaws.com"}
        yield Need(action="iam:PassRole", resource=role_arn(profile_role), context=to_ec2)


def of_vm(action: str, region: str, vm_id: str, tags: Mapping[str, str]) -> Need:
    """An action on one VM."""
    context = {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
    return Need(action=action, resource=arn("ec2", region, f"instance/{vm_id}"), context=context)


REMOVED = {
    "DeleteVolume": ("volume", "VolumeId"),
    "DeleteNetworkInterface": ("network-interface", "NetworkInterfaceId"),
    "ReleaseAddress": ("elastic-ip", "AllocationId"),
}
"""The kind of resource that an action deletes, and the parameter that names it."""


def of_removal(action: str, region: str, name: str, tags: Mapping[str, str]) -> Need:
    """An action that deletes something beside VMs."""
    context = {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
    resource = arn("ec2", region, f"{REMOVED[action][0]}/{name}")
    return Need(action=f"ec2:{action}", resource=resource, context=context)


def of_fis(action: str, region: str, body: Mapping[str, Any]) -> Iterator[Need]:
    """FIS: what its templates name, the tags, and the role that experiments take."""
    tags = {f"aws:RequestTag/{key}": value for key, value in (body.get("tags") or {}).items()}
    template = arn("fis", region, "experiment-template/*")
    yield Need(action=f"fis:{action}", resource=template, context=tags)
    if tags:
        yield Need(action="fis:TagResource", resource=template, context=tags)
    if action == "StartExperiment":
        experiment = arn("fis", region, "experiment/*")
        yield Need(action="fis:StartExperiment", resource=experiment, context=tags)
    if action == "CreateExperimentTemplate":
        for each in body["actions"].values():
            made = arn("fis", region, f"action/{each['actionId']}")
            yield Need(action=f"fis:{action}", resource=made, context=tags)
        to_fis = {"iam:PassedToService": "fis.amazonaws.com"}
        yield Need(action="iam:PassRole", resource=role_arn(body["roleArn"]), context=to_fis)

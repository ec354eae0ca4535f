"""AWS on loopback: moto's server, and before it a layer for what moto lacks or gets wrong.

    with Emulator() as aws:
        aws.script.fail("RunInstances", "InsufficientInstanceCapacity", zone="us-east-1a")
        ec2 = aws.client("ec2")
        ...
        assert aws.count("RunInstances") == 2

Tests take the fixture `aws` of tests/conftest.py: one server for the session, emptied for each
test. moto, flask and boto3 are imported when the first server is made (about two seconds), so
nothing here may import them at its top but what `server` imports in its turn.

From moto as it is: S3, IAM, STS, security groups, VPCs, types and offerings, volumes, tags,
CloudFormation. Only in the layer, so that a real account may differ in what is not documented: spot
requests and their statuses, prices, console output, FIS evictions, quotas, image parameters, the
life of a VM over time, client tokens, resources and conditions in IAM.

Modules: `server` (the WSGI layer), `calls` (a request as the layer sees it), `wire` (checks it
against botocore's model), `script` (what goes wrong), `fleet` (the lives of VMs), `ec2`, `others`
(moto's classes with methods of ours), `iam`, `enforced` (who may do what), `errors`; `hosts` and
`vm` let the VMs really run.
"""

from __future__ import annotations

from fakes.aws.script import FOR_EVER, Fault, Script
from fakes.aws.server import Emulator

__all__ = ["FOR_EVER", "Emulator", "Fault", "Script"]

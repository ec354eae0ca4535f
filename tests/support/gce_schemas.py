"""Writes tests/fakes/gcp/schemas.json: what the fake of Compute Engine takes, from the contract
data that Google itself publishes, so that nobody here wrote what is checked:

    pip download --no-deps --dest D google-api-python-client
    python tests/support/gce_schemas.py D/google_api_python_client-*.whl

The discovery document in that package (Apache-2.0) has all of the API; here are the methods that
the driver calls, with their parameters, and the schemas of the bodies that are sent, without their
texts.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "fakes" / "gcp" / "schemas.json"
DOCUMENT = "googleapiclient/discovery_cache/documents/compute.v1.json"
METHODS = (
    "acceleratorTypes.aggregatedList",
    "disks.aggregatedList",
    "disks.delete",
    "globalOperations.aggregatedList",
    "images.get",
    "images.getFromFamily",
    "instances.aggregatedList",
    "instances.delete",
    "instances.get",
    "instances.getSerialPortOutput",
    "instances.insert",
    "instances.simulateMaintenanceEvent",
    "machineTypes.aggregatedList",
    "networks.get",
    "projects.get",
    "regions.get",
    "subnetworks.get",
)
KEPT = ("type", "format", "pattern", "enum", "$ref")


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)


def plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without texts; `readOnly` for what only answers have, which the document says in words."""
    found = {key: schema[key] for key in KEPT if key in schema}
    text = schema.get("description", "").lower()
    if schema.get("readOnly") or text.startswith(("[output only]", "output only")):
        found["readOnly"] = True
    for key in ("items", "additionalProperties"):
        if key in schema:
            found[key] = plain(schema[key])
    if "properties" in schema:
        found["properties"] = {key: plain(value) for key, value in schema["properties"].items()}
    return found


def closure(schemas: Mapping[str, Any], root: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wanted = [root]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = plain(schemas[name])
            wanted += references(found[name])
    return dict(sorted(found.items()))


def main(wheel: Path) -> None:
    document = json.loads(zipfile.ZipFile(wheel).read(DOCUMENT))
    methods = {}
    for name in METHODS:
        resource, _, method = name.partition(".")
        known = document["resources"][resource]["methods"][method]
        methods[name] = {
            "method": known["httpMethod"],
            "path": known["flatPath"],
            "query": sorted(
                key for key, each in known["parameters"].items() if each["location"] == "query"
            ),
            "body": known.get("request", {}).get("$ref"),
        }
    made = {
        "source": f"compute v1, revision {document['revision']}",
        "everywhere": sorted(document["parameters"]),
        "methods": methods,
        "schemas": closure(document["schemas"], "Instance"),
    }
    FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

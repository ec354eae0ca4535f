"""Bodies against the schemas of the discovery document, routes against its methods, field masks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DOCUMENT: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("schemas.json").read_text(encoding="utf-8")
)
SCHEMAS: Mapping[str, Any] = DOCUMENT["schemas"]
METHODS: Mapping[str, Any] = DOCUMENT["methods"]
PARTIAL = "returnPartialSuccess"
"""Of aggregated lists: the description of each recommends it in words, older ones have it as a
parameter, and that of the newest document is not there."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}
_ROUTES = {
    name: re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", each["path"]))
    for name, each in METHODS.items()
}


class Refused(Exception):
    """What is wrong, in words like Compute Engine's."""

    def __init__(self, message: str, *, status: int = 400, reason: str = "invalid") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


def route(method: str, path: str) -> tuple[str, dict[str, str]]:
    """The method of the API, and the parameters of its path."""
    for name, pattern in _ROUTES.items():
        found = pattern.fullmatch(path)
        if found and METHODS[name]["method"] == method:
            return name, found.groupdict()
    raise Refused(f"{method} {path} is no method of Compute Engine", status=404, reason="notFound")


def check_query(name: str, query: Mapping[str, str]) -> None:
    strange = query.keys() - set(METHODS[name]["query"]) - set(DOCUMENT["everywhere"])
    if name.endswith(".aggregatedList"):
        strange -= {PARTIAL}
    if strange:
        raise Refused(f"Unknown name '{min(strange)}': cannot bind query parameter of {name}")


def check_body(name: str, body: Any) -> None:
    schema = METHODS[name]["body"]
    if schema is None:
        if body not in (None, {}):
            raise Refused(f"{name} takes no body")
        return
    check(body, {"$ref": schema}, "resource")


def check(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """Raises Refused for unknown fields, wrong types, and what only answers have."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"]]
    if schema.get("readOnly"):
        raise Refused(f"'{where}' is output only")
    kind = schema.get("type", "any")
    if kind != "any" and not isinstance(value, _TYPES[kind]):
        raise Refused(f"Invalid value at '{where}': {value!r} is no {kind}")
    if kind == "integer" and isinstance(value, bool):
        raise Refused(f"Invalid value at '{where}': {value!r} is no integer")
    if schema.get("format") in ("int64", "uint64") and not re.fullmatch(r"-?\d+", str(value)):
        raise Refused(f"Invalid value at '{where}': {value!r} is no 64-bit number")
    if "enum" in schema and value not in schema["enum"]:
        raise Refused(f"Invalid value at '{where}': {value!r} is none of {schema['enum']}")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        raise Refused(
            f"Invalid value for field '{where}': '{value}'. Must match {schema['pattern']}"
        )
    if kind == "array":
        for number, item in enumerate(value):
            check(item, schema["items"], f"{where}[{number}]")
    if kind == "object":
        known = schema.get("properties", {})
        for key, item in value.items():
            inner = known.get(key, schema.get("additionalProperties"))
            if inner is None:
                raise Refused(f"Unknown name '{key}' at '{where}': cannot find field")
            check(item, inner, f"{where}.{key}")


def masked(value: Any, mask: str) -> Any:
    """What the parameter `fields` leaves of an answer (partial responses)."""
    tree, rest = _parse(mask, 0)
    if rest != len(mask):
        raise Refused(f"Invalid field selection {mask}")
    instance = _instance_fields(tree)
    if instance and (strange := instance.keys() - SCHEMAS["Instance"]["properties"].keys()):
        raise Refused(f"Invalid field selection {min(strange)}")
    return _only(value, tree)


def _instance_fields(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tree.get("items", {}).get("*", {}).get("instances", {})
    return found if isinstance(found, Mapping) else {}


def _parse(text: str, at: int) -> tuple[dict[str, Any], int]:
    tree: dict[str, Any] = {}
    while at < len(text) and text[at] != ")":
        inner = tree
        while True:
            found = re.compile(r"[\w*]+").match(text, at)
            if found is None:
                raise Refused(f"Invalid field selection {text[at:]}")
            at = found.end()
            inner = inner.setdefault(found[0], {})
            if text[at : at + 1] != "/":
                break
            at += 1
        if text[at : at + 1] == "(":
            more, at = _parse(text, at + 1)
            inner.update(more)
            at += 1
        if text[at : at + 1] == ",":
            at += 1
    return tree, at


def _only(value: Any, tree: Mapping[str, Any]) -> Any:
    if not tree:
        return value
    if isinstance(value, list):
        return [_only(item, tree) for item in value]
    if not isinstance(value, dict):
        return value
    every = tree.get("*")
    if every is not None:
        return {key: _only(item, every) for key, item in value.items()}
    return {key: _only(value[key], inner) for key, inner in tree.items() if key in value}

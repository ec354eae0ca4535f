"""Requests on the wire, read and checked against botocore's service model.

moto ignores what it does not know; EC2 refuses it. The model is AWS's own, so a parameter, a type
or a value of an enum that passes here is one that EC2 knows. Not in the model, and so not checked
here: names of filters, which values go together, lengths.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from fakes.aws.errors import AwsError

Tree = dict[str, "Tree | str"]


def from_form(shape: Any, form: Mapping[str, str], protocol: str) -> dict[str, Any]:
    """The parameters of a form by their names in the API, as boto3 takes them.

    `protocol` is ec2 or query. Raises AwsError: UnknownParameter, MissingParameter,
    InvalidParameterValue.
    """
    tree: Tree = {}
    for name, value in form.items():
        if name in ("Action", "Version"):
            continue
        node = tree
        *folders, last = name.split(".")
        for folder in folders:
            below = node.setdefault(folder, {})
            if isinstance(below, str):
                raise _unknown(name)
            node = below
        node[last] = value
    if shape is None:
        if tree:
            raise _unknown(next(iter(tree)))
        return {}
    return dict(_Form(protocol).structure(shape, tree, ""))


def from_json(shape: Any, body: bytes) -> dict[str, Any]:
    """The parameters of a JSON body. Raises AwsError (ValidationException)."""
    params: dict[str, Any] = json.loads(body or b"{}")
    if shape is not None:
        _check(shape, params, "")
    return params


def _check(shape: Any, value: Any, at: str) -> None:
    kind = shape.type_name
    if kind == "structure":
        if not isinstance(value, dict):
            raise _invalid_json(at, value)
        for name in value:
            if name not in _json_names(shape):
                raise AwsError("ValidationException", f"unknown parameter {at}{name}")
        _require(shape, value, at, code="ValidationException", names=_json_names(shape))
        for name, member in _json_names(shape).items():
            if value.get(name) is not None:
                _check(member, value[name], f"{at}{name}.")
    elif kind in ("list", "map"):
        if not isinstance(value, list if kind == "list" else dict):
            raise _invalid_json(at, value)
        inner, values = (shape.member, value) if kind == "list" else (shape.value, value.values())
        for item in values:
            _check(inner, item, at)
    elif not isinstance(value, _JSON_TYPES.get(kind, str)) or _not_in_enum(shape, value):
        raise _invalid_json(at, value)


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float, str),
}


class _Form:
    """Reads a tree of names by a shape; lists are numbered from 1."""

    def __init__(self, protocol: str) -> None:
        self.ec2 = protocol == "ec2"

    def read(self, shape: Any, node: Tree | str, at: str) -> Any:
        if shape.type_name == "structure":
            return self.structure(shape, self._tree(node, at), at)
        if shape.type_name == "list":
            return self._list(shape, self._tree(node, at), at)
        if shape.type_name == "map":
            return self._map(shape, self._tree(node, at), at)
        if not isinstance(node, str):
            raise _unknown(f"{at}.{next(iter(node))}")
        return _scalar(shape, node, at)

    def structure(self, shape: Any, tree: Tree, at: str) -> dict[str, Any]:
        names = {self._name(name, member): name for name, member in shape.members.items()}
        found: dict[str, Any] = {}
        for key, below in tree.items():
            if key not in names:
                raise _unknown(f"{at}.{key}" if at else key)
            name = names[key]
            found[name] = self.read(shape.members[name], below, f"{at}.{key}" if at else key)
        _require(shape, found, at, code="MissingParameter", names=shape.members)
        return found

    def _name(self, name: str, member: Any) -> str:
        known = member.serialization
        if not self.ec2:
            if member.type_name == "list" and known.get("flattened"):
                return str(member.member.serialization.get("name") or known.get("name", name))
            return str(known.get("name", name))
        if "queryName" in known:
            return str(known["queryName"])
        if "name" in known:
            return str(known["name"][0].upper() + known["name"][1:])
        return name

    def _list(self, shape: Any, tree: Tree, at: str) -> list[Any]:
        if not self.ec2 and not shape.serialization.get("flattened"):
            word = shape.member.serialization.get("name", "member")
            if set(tree) - {word}:
                raise _unknown(f"{at}.{next(iter(set(tree) - {word}))}")
            tree = self._tree(tree.get(word, {}), at)
        if not all(key.isdigit() for key in tree):
            raise _unknown(f"{at}.{next(key for key in tree if not key.isdigit())}")
        return [self.read(shape.member, tree[key], at) for key in sorted(tree, key=int)]

    def _map(self, shape: Any, tree: Tree, at: str) -> dict[str, Any]:
        entries = self._tree(tree.get("entry", tree), at)
        found = {}
        for key in sorted(entries, key=int):
            entry = self._tree(entries[key], at)
            found[str(entry["key"])] = self.read(shape.value, entry["value"], at)
        return found

    def _tree(self, node: Tree | str, at: str) -> Tree:
        if isinstance(node, str):
            if node == "":  # botocore's way to send an empty list
                return {}
            raise _unknown(at)
        return node


def _scalar(shape: Any, text: str, at: str) -> Any:
    kind = shape.type_name
    try:
        if kind == "boolean":
            return {"true": True, "false": False}[text.lower()]
        if kind in ("integer", "long"):
            return int(text)
        if kind in ("float", "double"):
            return float(text)
        if kind == "blob":
            return base64.b64decode(text, validate=True)
    except (KeyError, ValueError, binascii.Error):
        raise _invalid(at, text) from None
    if _not_in_enum(shape, text):
        raise _invalid(at, text)
    return text


def _not_in_enum(shape: Any, value: Any) -> bool:
    known = getattr(shape, "enum", None)
    return bool(known) and value not in known


def _json_names(shape: Any) -> dict[str, Any]:
    return {
        member.serialization.get("name", name): member for name, member in shape.members.items()
    }


def _require(
    shape: Any, found: Mapping[str, Any], at: str, *, code: str, names: Mapping[str, Any]
) -> None:
    for name in shape.required_members:
        sent_otherwise = "location" in shape.members[name].serialization  # in the path, say
        wire = name if name in names else shape.members[name].serialization.get("name", name)
        if wire not in found and not sent_otherwise:
            where = f"{at}.{name}" if at else name
            raise AwsError(code, f"The request must contain the parameter {where}")


def _unknown(name: str) -> AwsError:
    return AwsError("UnknownParameter", f"The parameter {name} is not recognized")


def _invalid(name: str, value: str) -> AwsError:
    return AwsError("InvalidParameterValue", f"Invalid value '{value}' for {name}.")


def _invalid_json(at: str, value: Any) -> AwsError:
    return AwsError("ValidationException", f"Invalid value {value!r} for {at.rstrip('.')}")

"""Whether Azure would take a body: a walker over the TypedDicts of `azure.mgmt.compute.types`.

Unknown fields are refused, and what is marked Required has to be there (`__required_keys__` holds
less and more than that). Texts that have an enumeration must be of it, but those of `vmSize`, which
lacks the VM types of the last years.
"""

from __future__ import annotations

import enum
from functools import cache, lru_cache
from typing import Any, Union, get_args, get_origin

from typing_extensions import Required, get_type_hints, is_typeddict

OPEN_ENUMS = frozenset({"vmSize"})


class Wrong(Exception):
    """Where, and what."""


def check(body: Any, type_name: str) -> None:
    """Raises Wrong."""
    _walk(body, _namespace()[type_name], type_name)


@lru_cache(maxsize=1)
def _namespace() -> dict[str, Any]:
    from azure.mgmt.compute import models, types

    return {**vars(models), **vars(types)}


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, globalns=_namespace(), include_extras=True)


def _walk(value: Any, kind: Any, where: str, field: str = "") -> None:
    origin = get_origin(kind)
    if is_typeddict(kind):
        _object(value, kind, where)
    elif origin is list:
        _is(value, list, where)
        for index, each in enumerate(value):
            _walk(each, get_args(kind)[0], f"{where}[{index}]")
    elif origin is dict:
        _is(value, dict, where)
        for key, each in value.items():
            _walk(each, get_args(kind)[1], f"{where}.{key}")
    elif origin is Union:
        _choice(value, get_args(kind), where, field)
    elif kind is float:
        _is(value, (int, float), where)
    elif kind in (str, int, bool):
        _is(value, kind, where)


def _object(value: Any, kind: Any, where: str) -> None:
    _is(value, dict, where)
    fields = _fields(kind)
    if unknown := sorted(value.keys() - fields.keys()):
        raise Wrong(f"Could not find member '{unknown[0]}' on object of type '{where}'")
    for name, field_kind in fields.items():
        if get_origin(field_kind) is Required:
            if name not in value:
                raise Wrong(f"Required parameter '{name}' is missing (null) in '{where}'")
            field_kind = get_args(field_kind)[0]
        if name in value:
            _walk(value[name], field_kind, f"{where}.{name}", name)


def _choice(value: Any, kinds: tuple[Any, ...], where: str, field: str) -> None:
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)]
    if not enums:
        return
    _is(value, str, where)
    known = [each.value.lower() for kind in enums for each in kind]
    if field not in OPEN_ENUMS and value.lower() not in known:
        raise Wrong(f"The value '{value}' of '{where}' is none of {', '.join(known)}")


def _is(value: Any, kind: Any, where: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Wrong(f"'{where}' is {value!r:.60}, which is of another type")

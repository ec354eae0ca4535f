"""What /openapi.json tells of the routes beside what FastAPI finds out by itself.

A route that reads its body by itself says here what it takes, and one that answers bytes what it
gives. The file docs/openapi.json is this description; `make openapi` writes it.
"""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

COMPONENTS = "#/components/schemas/{model}"

Described = dict[int | str, dict[str, Any]]


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra` of a route that reads this message by itself. `describe` has to know the
    model."""
    return _body("application/json", {"$ref": COMPONENTS.format(model=model.__name__)})


def takes_bytes(media_type: str) -> dict[str, Any]:
    return _body(media_type, {"type": "string", "format": "binary"})


def gives_bytes(media_type: str) -> Described:
    """For `responses`."""
    schema = {"type": "string", "format": "binary"}
    return {200: {"content": {media_type: {"schema": schema}}}}


def describe(app: FastAPI, *, taken: tuple[type[BaseModel], ...], version: str) -> None:
    """Let `app.openapi` tell everything. `taken`: the models of all `takes`."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=version, routes=app.routes)
            components: dict[str, Any] = schema["components"]["schemas"]
            _, found = models_json_schema(
                [(model, "validation") for model in taken], ref_template=COMPONENTS
            )
            for name, definition in found["$defs"].items():
                components.setdefault(name, definition)
            schema["components"]["schemas"] = dict(sorted(components.items()))
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # the way that FastAPI's manual names


def text_of(app: FastAPI) -> str:
    """As the file holds it: a change is a few lines."""
    return json.dumps(app.openapi(), indent=1) + "\n"


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"content": {media_type: {"schema": schema}}, "required": True}}

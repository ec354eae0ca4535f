"""`checkpoint.storage` of the job file: one, or a list of which the first holds the chain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    field_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from spothop import storageoptions
from spothop.jobfields import Section, Text, checked_text, refuse
from spothop.wire import PlacedStorage, StorageSpec

ACCEPTED: dict[str, Any] = {"accepted": True}
"""Context of the validation of a job that was accepted before."""
URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+", re.ASCII)
MOST_STORES = 8
"""In one list: each is measured by every VM, and looked at by every pruning."""
_CLOUDS = {"S3": "aws", "GCS": "gcp", "Azure": "azure"}


def checked_url(text: str) -> str:
    hint = "write one such as s3://bucket/path or file:///path"
    if not URL.fullmatch(text):
        raise refuse("is not a storage URL", hint)
    try:
        path = storageoptions.split_url(text).path
    except ValueError as error:  # such as brackets around what is no IPv6 address
        raise refuse(f"is not a storage URL: {error}", hint) from None
    if "\0" in unquote(path):
        raise refuse("is not a storage URL: %00 is a NUL character", hint)
    return text


def no_secret_in(url: str, info: ValidationInfo) -> str:
    """A URL is shown everywhere, so that nothing secret may stand in it."""
    if info.context is ACCEPTED:
        return url
    parts = urlsplit(url)
    if parts.password:
        hint = "credentials go into checkpoint.storage.options, which stay secret"
        raise refuse("holds a password", hint)
    if parts.scheme in {"http", "https"} and parts.username is not None:
        raise refuse("holds a user name", "leave it out; it would be shown with the job")
    if parts.scheme != "file" and parts.query:
        hint = "leave it out; a signature goes into checkpoint.storage.options, as sas_key"
        raise refuse("holds a query", hint)
    return url


def _option(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def _options(options: object, url: str | None) -> object:
    """Each name and value that `url` does not take is a problem of its own."""
    if not isinstance(options, Mapping):
        raise refuse("should be keys and values", "for example options: {endpoint: https://...}")
    found = {str(name): _option(value) for name, value in options.items()}
    problems = (
        [
            InitErrorDetails(
                type=refuse(fact, hint),
                loc=(name,),
                input=_shown_option(name, found[name]),
            )
            for name, fact, hint in storageoptions.refusals(url, found)
        ]
        if url is not None
        else []
    )  # without a URL there is a problem already
    if problems:
        raise ValidationError.from_exception_data("options", problems)
    return found


def _shown_option(name: str, value: object) -> str:
    """A misspelled name is shown its value where the one that was meant would be."""
    meant = storageoptions.nearest(name, storageoptions.ALL) or name
    return storageoptions.shown(meant, value) if isinstance(value, str) else storageoptions.MASK


def _storages(
    value: object, one: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> StorageSection:
    """A URL, a mapping, or a list of these: the first holds the chain, and has the others with it.
    What is wrong with a plain URL is told of the key itself, and of a list with the number."""

    def checked(item: object) -> StorageSection:
        if isinstance(item, str):
            item = {"url": no_secret_in(checked_url(checked_text(item)), info)}
        found: StorageSection = one(item)
        return found

    if not isinstance(value, (list, tuple)):
        return checked(value)
    if not 1 <= len(value) <= MOST_STORES:
        raise refuse(f"holds {len(value)} storages", f"write 1 to {MOST_STORES}, or one URL")
    found: list[StorageSection] = []
    problems: list[InitErrorDetails] = []
    for at, item in enumerate(value):
        try:
            found.append(checked(item))
            if item is not None and found[-1].url in [each.url for each in found[:-1]]:
                raise refuse("is there twice", "name each storage once")
        except PydanticCustomError as error:
            shown = item if isinstance(item, str) else None
            problems.append(InitErrorDetails(type=error, loc=(at,), input=shown))
        except ValidationError as error:
            problems += [_inside_list(at, each) for each in error.errors(include_url=False)]
    if problems:
        raise ValidationError.from_exception_data("storage", problems)
    return found[0].with_others(found[1:])


def _inside_list(at: int, problem: ErrorDetails) -> InitErrorDetails:
    context, kind = problem.get("ctx") or {}, problem["type"]
    loc, value = (at, *problem["loc"]), problem["input"]
    if kind == "job_file":
        error = refuse(context["fact"], context["hint"])
        return InitErrorDetails(type=error, loc=loc, input=value)
    return InitErrorDetails(type=kind, loc=loc, input=value, ctx=context)


StorageUrl = Annotated[Text, AfterValidator(checked_url), AfterValidator(no_secret_in)]


class StorageSection(Section):
    """A storage whose address or credentials a VM does not have by itself; the first one of several
    has the `others` with it."""

    url: StorageUrl = Field(examples=["s3://bucket/path"], description="where checkpoints go")
    options: dict[str, str] = Field(
        default_factory=dict, description="options of obstore, such as endpoint; secrets stay so"
    )
    cloud: Text | None = Field(
        None, min_length=1, description="where it lies; default: by the URL", examples=["aws"]
    )
    region: Text | None = Field(
        None,
        min_length=1,
        description="where it lies; default: that of the options",
        examples=["eu-central-1"],
    )
    _others: tuple[StorageSection, ...] = PrivateAttr(())

    @field_validator("options", mode="before")
    @classmethod
    def _known_options(cls, options: object, info: ValidationInfo) -> object:
        accepted = info.context is ACCEPTED  # by its own release; and the secrets may be masked
        return _options(options, None if accepted else info.data.get("url"))

    def spec(self) -> StorageSpec:
        return StorageSpec(url=self.url, options=self.options)

    @classmethod
    def of_setting(cls, url: str) -> StorageSection:
        """What stands in no job file, and was accepted before."""
        return cls.model_validate({"url": url}, context=ACCEPTED)

    @property
    def others(self) -> tuple[StorageSection, ...]:
        """Those of the list beside this one, which holds the chain."""
        return self._others

    def all(self) -> tuple[StorageSection, ...]:
        return (self, *self._others)

    def with_others(self, others: Sequence[StorageSection]) -> StorageSection:
        found = self.model_copy()
        found._others = tuple(others)
        return found

    def placed(self) -> PlacedStorage:
        """With the cloud and region where it lies, as far as the job file tells. Whoever gives an
        `endpoint` may mean a store of their own that speaks S3."""
        provider = None if "endpoint" in self.options else storageoptions.provider_of(self.url)
        cloud = self.cloud or _CLOUDS.get(provider or "")
        region = self.region or self.options.get("region") or self.options.get("default_region")
        return PlacedStorage(storage=self.spec(), cloud=cloud or "", region=region or "")

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return self.spec().__repr_args__()


def _as_written(storage: StorageSection) -> str | dict[str, Any] | list[Any]:
    if storage.others:
        return [_as_written(each.with_others(())) for each in storage.all()]
    more = {"options": storage.options, "cloud": storage.cloud, "region": storage.region}
    given = {name: value for name, value in more.items() if value}
    return {"url": storage.url, **given} if given else storage.url


_STORAGE_SCHEMA = {
    "type": "object",
    "properties": {
        "url": {"type": "string"},
        "options": {"type": "object", "additionalProperties": {"type": "string"}},
        "cloud": {"type": "string"},
        "region": {"type": "string"},
    },
    "required": ["url"],
    "additionalProperties": False,
}


StorageOrUrl = Annotated[
    StorageSection,
    WrapValidator(_storages),
    PlainSerializer(_as_written),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                _STORAGE_SCHEMA,
                {
                    "type": "array",
                    "items": {"anyOf": [{"type": "string"}, _STORAGE_SCHEMA]},
                    "minItems": 1,
                    "maxItems": MOST_STORES,
                },
            ]
        }
    ),
]

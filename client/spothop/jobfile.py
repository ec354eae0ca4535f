"""Reads the job file and says what is wrong with it.

`load()` reads YAML from a file, `parse()` checks a mapping; both raise `JobFileError` with all
problems at once, each with the field's path, its value and a hint. Keys that we know but whose
feature does not work yet are refused, so that no job silently runs without what it asks for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spothop import storageoptions
from spothop.figures import as_written as _short
from spothop.jobspec import NOT_YET, SECTIONS, JobSpec

__all__ = ["FieldProblem", "JobFileError", "JobSpec", "json_schema", "load", "parse", "read_yaml"]

MAX_FILE_BYTES = 1_000_000
MOST_PROBLEMS = 20
"""That are told of one file."""
LONGEST_KEY = 100
"""Of an unknown key, that is compared with those we know."""
MAX_VALUES = 100_000
"""In one file; as its aliases count in full."""
_NAMES_A_VALUE = re.compile("found undefined alias|could not determine a constructor for the tag")


@dataclass(frozen=True, kw_only=True)
class FieldProblem:
    """One thing that is wrong in a job file."""

    field: str
    """Dotted path, such as `resources.any_of[0].vm`; empty for the file as a whole."""
    value: str
    """The value in the file, shortened; empty when there is none."""
    fact: str
    hint: str

    def __str__(self) -> str:
        subject = ": ".join(part for part in (self.field, self.value) if part)
        return f"{subject}: {self.fact}" if subject else self.fact


class JobFileError(Exception):
    """The job file cannot be used; `problems` has the reasons, the first `MOST_PROBLEMS`."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        texts = [*map(str, problems), *["there may be more"] * (len(problems) == MOST_PROBLEMS)]
        super().__init__("; ".join(texts))
        self.problems = problems


def json_schema() -> dict[str, Any]:
    """JSON schema of the job file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **JobSpec.model_json_schema(mode="validation"),
    }


def load(path: Path) -> JobSpec:
    """Read and check a job file; raises `JobFileError`."""
    return parse(read_yaml(path))


def parse(mapping: Mapping[Any, Any]) -> JobSpec:
    """Check a mapping; raises `JobFileError` with all problems in it."""
    problems = list(islice(_key_problems(mapping), MOST_PROBLEMS))
    if len(problems) == MOST_PROBLEMS:  # nobody reads more, and each costs a search
        raise JobFileError(problems)
    try:
        spec = JobSpec.model_validate(dict(mapping))
    except ValidationError as error:
        listed = {problem.field for problem in problems}
        found = (_problem(d) for d in error.errors(include_url=False) if d["type"] not in _OWN)
        problems += [problem for problem in found if problem.field not in listed]
        raise JobFileError(problems[:MOST_PROBLEMS]) from None
    if problems:
        raise JobFileError(problems)
    return spec


def read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file, loaded safely; duplicate keys are refused."""
    text = _read_text(path)
    try:
        content = _loaded(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = str(error.problem or error.context)
        if known := _NAMES_A_VALUE.match(problem):  # it may be a password that begins with * or !
            fact = f"{path} is not YAML: {where}{known[0]}"
            raise _file_error(fact, "put a value that begins with * or ! in quotes") from None
        raise _file_error(f"{path} is not YAML: {where}{problem}", "correct that line") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _file_error(f"{path} is not YAML: {error}", "correct the file") from None
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise _file_error(
            f"{path} holds {found}, not keys and values", "write at least `name:` and `run:`"
        )
    return content


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _file_error(f"no file {path}", "check the path") from None
    except OSError as error:
        raise _file_error(f"cannot read {path}: {error.strerror}", "check the path") from None
    if len(raw) > MAX_FILE_BYTES:
        raise _file_error(f"{path} is over 1 MB", "is this the job file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _file_error(
            f"{path} is not UTF-8 (byte {error.start})", "save it as UTF-8 text"
        ) from None


def _file_error(fact: str, hint: str) -> JobFileError:
    return JobFileError([FieldProblem(field="", value="", fact=fact, hint=hint)])


def _loaded(text: str) -> Any:
    """Raises yaml.YAMLError; also for what is small only as long as nobody writes it out."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _written_out(node, {})
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values the node stands for, with every alias and merge key (`<<`) in full.

    Nine lines of aliases of aliases stand for billions, and whoever walks through them never comes
    back; one that contains itself, for endlessly many. Raises yaml.YAMLError above `MAX_VALUES`.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    if (before := known.get(id(node))) is not None:
        count = before
    else:
        known[id(node)] = MAX_VALUES + 1  # as long as we are in it: a node inside itself
        inner = node.value if isinstance(node, yaml.SequenceNode) else chain(*node.value)
        known[id(node)] = count = 1 + sum(_written_out(child, known) for child in inner)
    if count > MAX_VALUES:
        raise yaml.YAMLError(
            f"with its aliases written out it has more than {MAX_VALUES} values, or contains itself"
        )
    return count


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses duplicate keys instead of keeping the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_OWN = ("extra_forbidden", "invalid_key")
"""Pydantic's errors that `_key_problems` reports better."""


def _key_problems(
    mapping: Mapping[Any, Any], section: str = "", at: str = ""
) -> Iterator[FieldProblem]:
    """Unknown keys and keys that do not work yet, through all sections."""
    known = list(SECTIONS[section].model_fields)
    later = NOT_YET.get(section, ())
    for key, value in mapping.items():
        part = _path_part(key) if isinstance(key, str) else f".{key}"
        field = (at + part).lstrip(".")
        inner = f"{section}.{key}" if section else str(key)
        if key in later:
            yield FieldProblem(
                field=field,
                value=_shown(field, value),
                fact="not available yet",
                hint="leave it out",
            )
        elif not isinstance(key, str):
            hint = "YAML reads it as something else (on, yes, 1): put it in quotes"
            yield FieldProblem(field=field, value="", fact="the key is not text", hint=hint)
        elif key not in known:
            yield _unknown(field, key, value, known, later)
        elif inner in SECTIONS and isinstance(value, Mapping):
            yield from _key_problems(value, inner, field)
        elif inner in SECTIONS and isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from _key_problems(item, inner, f"{field}[{i}]")


def _unknown(
    field: str, key: str, value: object, known: Sequence[str], later: Sequence[str]
) -> FieldProblem:
    """The hint names only keys that are taken: those for later would be refused, too."""
    near = difflib.get_close_matches(key[:LONGEST_KEY], [*known, *later], n=1, cutoff=0.5)
    if not near:
        hint = f"known keys: {', '.join(known)}"
    else:
        hint = "leave it out" if near[0] in later else f"did you mean {near[0]}?"
    return FieldProblem(field=field, value=_shown(field, value), fact="unknown key", hint=hint)


def _problem(detail: ErrorDetails) -> FieldProblem:
    names = [part for part in detail["loc"] if part != "[key]"]
    context: Mapping[str, Any] = detail.get("ctx") or {}
    missing = detail["type"] == "missing"
    fact = _FACTS.get(detail["type"]) or detail["msg"].removeprefix("Input ")
    field = "".join(_path_part(part) for part in names).lstrip(".")
    return FieldProblem(
        field=field,
        value="" if missing else _shown(field, detail["input"]),
        fact=fact[:1].lower() + fact[1:],
        hint=context.get("hint") or _hint(names),
    )


_FACTS = {
    "missing": "is missing",
    "string_type": "should be text",
    "string_unicode": "holds half of a surrogate pair, which is no character",
    "dict_type": "should be keys and values",
    "model_type": "should be keys and values",
    "tuple_type": "should be a list",
}


def _path_part(part: int | str) -> str:
    if isinstance(part, str) and re.fullmatch(r"[\w-]+", part):
        return f".{part}"
    return f"[{part!r}]"


def _hint(names: list[int | str]) -> str:
    """From the field's own example or description."""
    keys = [str(name) for name in names if isinstance(name, str)]
    section = SECTIONS.get(".".join(keys[:-1]))
    info = section.model_fields.get(keys[-1]) if section and keys else None
    if info is not None and info.examples:
        return f"for example {keys[-1]}: {info.examples[0]}"
    if info is not None and info.description:
        return info.description
    return "`spothop schema` prints what is allowed here"


_OPTIONS = re.compile(r"checkpoint\.storage(?:\[\d+\])?\.options")


def _shown(field: str, value: object) -> str:
    """The value of `field` for people: never what may be a secret of a storage."""
    if field.partition(".")[0] == "env":
        return _short(value)  # the variables of the script are shown with the job
    if _OPTIONS.fullmatch(field):
        return ""  # it is no mapping: anything may stand there
    if _OPTIONS.match(field):
        return _short(value)  # masked by its name already (`jobspec`)
    if storageoptions.looks_secret(field.rpartition(".")[2]):
        return _short(storageoptions.MASK)
    return _short(storageoptions.masked_values(value))

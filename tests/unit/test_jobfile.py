"""The job file: what is accepted, what is refused, and how that is said."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop import jobfile
from spothop.jobfile import FieldProblem, JobFileError, JobSpec
from spothop.jobspec import NOT_YET, SECTIONS
from support.examples import examples

FULL = """
name: mnist-small
code: src
setup: pip install -r requirements.txt
run: |
  python train.py --epochs $EPOCHS
env: {EPOCHS: 3, RATE: 0.5, NAME: x}
data:
  train: s3://bucket/train
checkpoint:
  storage: gs://bucket/runs
  init_from: job:mnist-3f2a
  keep: 4
resources:
  any_of:
    - {cloud: local, zone: zone-a}
    - {vm: p3.2xlarge}
  spot: false
  max_price: 1.5
nodes: 1
retries: {user: 0, infrastructure: 5}
logs: {max: 2GB}
max_duration: 1h30m
"""


def problems(spec: dict[Any, Any]) -> dict[str, FieldProblem]:
    with pytest.raises(JobFileError) as caught:
        jobfile.parse(spec)
    return {problem.field: problem for problem in caught.value.problems}


def minimal(**changes: Any) -> dict[Any, Any]:
    return {"name": "a", "run": "python train.py", **changes}


def write(folder: Path, content: str | bytes) -> Path:
    file = folder / "job.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_every_key_that_works_is_read(tmp_path: Path) -> None:
    spec = jobfile.load(write(tmp_path, FULL))
    assert spec.name == "mnist-small"
    assert spec.env == {"EPOCHS": "3", "RATE": "0.5", "NAME": "x"}
    assert spec.data == {"train": "s3://bucket/train"}
    assert (spec.checkpoint.init_from, spec.checkpoint.keep) == ("job:mnist-3f2a", 4)
    assert [choice.vm for choice in spec.resources.any_of] == [None, "p3.2xlarge"]
    assert (spec.resources.spot, spec.resources.max_price) == (False, 1.5)
    assert (spec.retries.user, spec.retries.infrastructure) == (0, 5)
    assert spec.logs.max == 2_000_000_000
    assert spec.max_duration == timedelta(minutes=90)


def test_two_keys_are_enough() -> None:
    spec = jobfile.parse(minimal())
    assert (spec.code.path, spec.setup, spec.nodes, spec.max_duration) == (".", "", 1, None)
    assert (spec.checkpoint.keep, spec.resources.spot) == (2, True)
    assert spec.logs.max == 100_000_000


def test_the_json_form_reads_back_to_the_same_spec(tmp_path: Path) -> None:
    spec = jobfile.load(write(tmp_path, FULL))
    assert jobfile.parse(json.loads(json.dumps(spec.as_mapping()))) == spec


def test_all_problems_are_told_at_once() -> None:
    found = problems({"name": "My Job", "nodes": 2, "max_duration": 30, "python": "x"})
    assert set(found) == {"name", "run", "nodes", "max_duration", "python"}
    assert all(problem.hint for problem in found.values())


@pytest.mark.parametrize(
    ("written", "read"),
    [(False, "off"), ("off", "off"), ("30m", timedelta(minutes=30)), (None, None)],
)
def test_hang_after_is_a_duration_or_off(written: object, read: object) -> None:
    """YAML reads a plain `off` as false."""
    spec = jobfile.parse(minimal(hang_after=written))
    assert spec.hang_after == read
    assert jobfile.parse(spec.as_mapping()) == spec
    refused = problems(minimal(hang_after="never"))
    assert refused["hang_after"].fact == "is not a duration"


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section, keys in NOT_YET.items() for key in keys]
)
def test_keys_of_features_to_come_are_refused_as_such(section: str, key: str) -> None:
    spec = minimal(**({section: {key: "x"}} if section else {key: "x"}))
    field = f"{section}.{key}" if section else key
    assert problems(spec)[field].fact == "not available yet"


@pytest.mark.parametrize(
    ("spec", "field", "hint"),
    [
        (minimal(rnu="x"), "rnu", "did you mean run?"),
        (minimal(chekpoint={}), "chekpoint", "did you mean checkpoint?"),
        (minimal(checkpoint={"keeep": 1}), "checkpoint.keeep", "did you mean keep?"),
        (
            minimal(resources={"any_of": [{}, {"zoone": "a"}]}),
            "resources.any_of[1].zoone",
            "did you mean zone?",
        ),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_one(
    spec: dict[Any, Any], field: str, hint: str
) -> None:
    problem = problems(spec)[field]
    assert (problem.fact, problem.hint) == ("unknown key", hint)


def test_a_key_like_nothing_known_is_refused_with_all_known_ones() -> None:
    assert "max_duration" in problems(minimal(qqqqqqqq=1))["qqqqqqqq"].hint


def test_a_key_that_yaml_reads_as_something_else_is_named() -> None:
    assert problems({**minimal(), True: "x"})["True"].fact == "the key is not text"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (minimal(name=""), "name"),
        (minimal(name="-a"), "name"),
        (minimal(name="a" * 49), "name"),
        (minimal(name="../etc"), "name"),
        (minimal(name="\N{ARABIC-INDIC DIGIT ONE}"), "name"),
        (minimal(run="  \n"), "run"),
        (minimal(run="a\0b"), "run"),
        (minimal(run="a\ud800b"), "run"),
        (minimal(setup="\udcff"), "setup"),
        (minimal(code="\ud800"), "code"),
        (minimal(code="a\0"), "code"),
        (minimal(env={"A": "\ud800"}), "env.A"),
        (minimal(data={"a\0": "s3://b"}), "data['a\\x00']"),
        (minimal(data={"a": "s3://b/\ud800"}), "data.a"),
        (minimal(checkpoint={"storage": "s3://b/\ud800"}), "checkpoint.storage"),
        (minimal(checkpoint={"policy": "\ud800"}), "checkpoint.policy"),
        (minimal(resources={"any_of": [{"zone": "\ud800"}]}), "resources.any_of[0].zone"),
        (minimal(setup=["a"]), "setup"),
        (minimal(code=""), "code"),
        (minimal(env={"A": True}), "env.A"),
        (minimal(env={"A": None}), "env.A"),
        (minimal(env={"1A": "x"}), "env.1A"),
        (minimal(env={"SPOTHOP_JOB": "x"}), "env.SPOTHOP_JOB"),
        (minimal(data={"../up": "s3://b"}), "data['../up']"),
        (minimal(data={"/abs": "s3://b"}), "data['/abs']"),
        (minimal(data={"a": "bucket"}), "data.a"),
        (minimal(data={"a": "s3://[my-bucket]/x"}), "data.a"),
        (minimal(data={"a": "file:///tmp/%00x"}), "data.a"),
        (minimal(checkpoint={"storage": "/tmp/x"}), "checkpoint.storage"),
        (minimal(checkpoint={"storage": "s3://[my-bucket]/x"}), "checkpoint.storage"),
        (minimal(checkpoint={"storage": "file:///tmp/%00x"}), "checkpoint.storage"),
        (minimal(checkpoint={"init_from": "s3://[my-bucket]/x"}), "checkpoint.init_from"),
        (minimal(checkpoint={"init_from": "file:///tmp/%00x"}), "checkpoint.init_from"),
        (minimal(checkpoint={"init_from": "job:"}), "checkpoint.init_from"),
        (minimal(checkpoint={"init_from": "mnist"}), "checkpoint.init_from"),
        (minimal(checkpoint={"keep": 0}), "checkpoint.keep"),
        (minimal(checkpoint={"keep": True}), "checkpoint.keep"),
        (minimal(checkpoint=3), "checkpoint"),
        (minimal(resources={"any_of": "local"}), "resources.any_of"),
        (minimal(resources={"any_of": [3]}), "resources.any_of[0]"),
        (minimal(resources={"max_price": 0}), "resources.max_price"),
        (minimal(resources={"max_price": float("nan")}), "resources.max_price"),
        (minimal(resources={"spot": "yes"}), "resources.spot"),
        (minimal(nodes=2), "nodes"),
        (minimal(retries={"user": -1}), "retries.user"),
        (minimal(logs={"max": "1TB"}), "logs.max"),
        (minimal(logs={"max": "1 GB"}), "logs.max"),
        (minimal(logs={"max": "99KB"}), "logs.max"),
        (minimal(logs={"max": True}), "logs.max"),
    ],
)
def test_bad_values_are_refused_where_they_stand(spec: dict[Any, Any], field: str) -> None:
    found = problems(spec)
    assert set(found) == {field}
    assert found[field].fact
    assert found[field].hint


def test_a_problem_names_field_value_and_fact() -> None:
    assert str(problems(minimal(nodes=2))["nodes"]) == "nodes: 2: should be 1"
    assert str(problems({"name": "a"})["run"]) == "run: is missing"


@pytest.mark.parametrize("section", ["", "checkpoint"])
def test_a_key_of_half_characters_is_told_in_text_that_can_be_sent(section: str) -> None:
    inner: dict[Any, Any] = {"\ud800": 1}
    with pytest.raises(JobFileError) as caught:
        jobfile.parse(minimal(**({section: inner} if section else inner)))
    assert str(caught.value).encode().startswith(section.encode() + rb"['\ud800']: 1: unknown key")


@pytest.mark.parametrize(
    ("spec", "field", "fact"),
    [
        (minimal(run="x" * 100_001), "run", "has 100,001 bytes"),
        (minimal(setup="\N{SNOWMAN}" * 33_334), "setup", "has 100,002 bytes"),
        (minimal(env={"A": "x", "BIG": "y" * 99_997}), "env.BIG", "has 100,001 bytes with its"),
        (
            minimal(env={f"V{i}": "x" * 83_331 for i in range(6)}),
            "env",
            "has 500,004 bytes in 6 variables, more than 500,000",
        ),
    ],
)
def test_what_no_program_can_be_started_with_is_refused(
    spec: dict[Any, Any], field: str, fact: str
) -> None:
    ((found, problem),) = problems(spec).items()
    assert found == field
    assert fact in problem.fact
    assert "a file of the code directory" in problem.hint


def test_what_a_program_can_be_started_with_is_taken() -> None:
    variables = {f"V{i}": "x" * 83_330 for i in range(5)} | {"V": "x" * 83_333}
    longest = minimal(run="x" * 100_000, setup="x" * 100_000, env=variables)
    assert jobfile.parse(longest).env == variables
    assert jobfile.parse(minimal(env={"BIG": "y" * 99_996}))


def test_a_long_value_is_shortened() -> None:
    assert len(problems(minimal(nodes="x" * 10_000))["nodes"].value) < 100


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "holds nothing"),
        ("- a\n- b", "holds a list"),
        ("name: a\nname: b", "line 2, column 1: the key 'name' is there twice"),
        ("env: {A: 1, A: 2}", "the key 'A' is there twice"),
        ("\t- :", "is not YAML: line 1"),
        ("!!python/object/apply:os.system [x]", "could not determine a constructor"),
        (b"name: \xff", "is not UTF-8 (byte 6)"),
        ("[" * 700, "is not YAML"),
        ("name: 1" + "0" * 5000, "is not YAML"),
        ("{[a]: b}", "unhashable"),
        ("a" * 1_000_001, "is over 1 MB"),
    ],
)
def test_files_that_hold_no_job_say_why(
    tmp_path: Path, content: str | bytes, expected: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        jobfile.load(write(tmp_path, content))
    (problem,) = caught.value.problems
    assert expected in problem.fact
    assert problem.hint


def test_a_file_that_is_not_there_and_a_folder_say_so(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"no file .*nothing\.yaml"):
        jobfile.load(tmp_path / "nothing.yaml")
    with pytest.raises(JobFileError, match="Is a directory"):
        jobfile.load(tmp_path)


def test_a_bomb_of_aliases_is_refused_quickly(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(JobFileError) as caught:
        jobfile.load(write(tmp_path, "\n".join([*levels, "name: *a11"])))
    assert len(str(caught.value)) < 3000


MERGED = "\n".join(
    ["a0: &a0 {k0: 1, k1: 2}"]
    + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 12)]
)


@pytest.mark.parametrize(
    "content", [MERGED, "env: &e {A: *e}", "name: &n [*n]", "env: &e\n  <<: *e"]
)
def test_merge_keys_and_aliases_count_in_full(tmp_path: Path, content: str) -> None:
    with pytest.raises(JobFileError, match=r"with its aliases written out|is not YAML"):
        jobfile.load(write(tmp_path, content))


def test_a_few_aliases_are_fine(tmp_path: Path) -> None:
    text = "name: a\nrun: b\nenv: &e {A: x, B: y}\ndata: {<<: {}}\n"
    assert jobfile.load(write(tmp_path, text)).env == {"A": "x", "B": "y"}


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    file = write(tmp_path, b"\xef\xbb\xbfname: a\nrun: b")
    assert jobfile.load(file).name == "a"


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
known_keys = st.sampled_from(sorted({key for s in SECTIONS.values() for key in s.model_fields}))


@examples(100)
@given(st.dictionaries(known_keys | st.text(max_size=8) | st.integers(), json_like, max_size=6))
def test_any_mapping_is_a_spec_or_a_list_of_problems_with_hints(mapping: dict[Any, Any]) -> None:
    found: list[FieldProblem] | None = None
    try:
        spec = jobfile.parse(mapping)
    except JobFileError as error:
        found = error.problems
    if found is None:
        assert jobfile.parse(spec.as_mapping()) == spec
    else:
        assert found
        assert all(problem.fact and problem.hint for problem in found)


# --- durations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["30", 30, "", "s", "-1s", "1 h", "1w", "30m1h", "0s", "9999999d"]
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    assert "max_duration" in problems(minimal(max_duration=value))


# --- schema -------------------------------------------------------------------------------------


def test_the_schema_has_every_key_that_works_and_no_other() -> None:
    schema = jobfile.json_schema()
    assert set(schema["properties"]) == set(JobSpec.model_fields)
    assert schema["required"] == ["name", "run"]
    assert schema["additionalProperties"] is False
    assert not set(schema["properties"]) & set(NOT_YET[""])
    json.dumps(schema)


@pytest.mark.parametrize(
    ("code", "path", "include"),
    [
        ("src", "src", ()),
        ({"path": "src"}, "src", ()),
        ({"include": ["data/vocab.json", "*.bin"]}, ".", ("data/vocab.json", "*.bin")),
    ],
)
def test_code_is_a_path_or_a_section(code: object, path: str, include: tuple[str, ...]) -> None:
    spec = jobfile.parse(minimal(code=code))
    assert (spec.code.path, spec.code.include) == (path, include)
    assert jobfile.parse(spec.as_mapping()) == spec
    assert (spec.as_mapping()["code"] == path) == (not include)  # as older masters know it


@pytest.mark.parametrize(
    ("code", "field", "fact", "hint"),
    [
        ("", "code", "is empty", "code: ."),
        (["a"], "code", "should be keys and values", "code: ."),
        ({"include": "data"}, "code.include", "should be a list", "include: [data/vocab.json]"),
        ({"include": ["a", "!b"]}, "code.include[1]", "begins with !", "leave the ! out"),
        ({"include": ["# data"]}, "code.include[0]", "begins with #", "leave the # out"),
        ({"include": [" "]}, "code.include[0]", "is no pattern", "data/vocab.json"),
        ({"include": ["../data"]}, "code.include[0]", "names nothing below", "relative"),
        ({"include": ["./data"]}, "code.include[0]", "names nothing below", "relative"),
        ({"include": ["/"]}, "code.include[0]", "names nothing below", "relative"),
        ({"includes": ["a"]}, "code.includes", "unknown key", "did you mean include?"),
    ],
)
def test_wrong_code_is_told_with_field_fact_and_hint(
    code: object, field: str, fact: str, hint: str
) -> None:
    with pytest.raises(JobFileError) as caught:
        jobfile.parse(minimal(code=code))
    (problem,) = caught.value.problems
    assert problem.field == field
    assert fact in problem.fact
    assert hint in problem.hint


def test_a_date_is_shown_as_it_was_written() -> None:
    spec = {
        "name": date(2026, 5, 1),
        "run": datetime(2026, 5, 1, 12, tzinfo=timezone.utc),
        "env": {"A": [date.max]},
    }
    with pytest.raises(JobFileError) as caught:
        jobfile.parse(spec)
    assert {problem.field: problem.value for problem in caught.value.problems} == {
        "name": "2026-05-01",
        "run": "2026-05-01 12:00:00+00:00",
        "env.A": "[9999-12-31]",
    }


REFUSED = [(section, key) for section, keys in NOT_YET.items() for key in keys]


@pytest.mark.parametrize(("section", "key"), REFUSED)
def test_no_hint_names_a_key_that_is_refused(section: str, key: str) -> None:
    refused = {key for _, key in REFUSED}
    for wrong in (key[:-1], key + "s", key.upper(), key.replace("_", "-") + "x", "zzz"):
        content: dict[str, Any] = {wrong: 1}
        for name in reversed(section.split(".")) if section else ():
            content = {name: content}
        with pytest.raises(JobFileError) as caught:
            jobfile.parse(minimal(**content))
        for problem in caught.value.problems:
            assert not refused & set(re.findall(r"[a-z_]+", problem.hint)), problem.hint


def test_of_very_many_problems_the_first_are_told_soon() -> None:
    """400,000 unknown keys took 36 s."""
    mapping = {"name": "a", "run": "x"} | {f"key{n}": n for n in range(400_000)}
    with pytest.raises(jobfile.JobFileError) as error:
        jobfile.parse(mapping)
    assert [problem.field for problem in error.value.problems] == [f"key{n}" for n in range(20)]
    assert str(error.value).endswith("there may be more")


@pytest.mark.parametrize(
    ("written", "folders", "most"),
    [
        ("off", None, None),
        (False, None, None),  # as YAML reads off
        ([".venv"], (".venv",), 20 * 10**9),
        (["a/b/", "c"], ("a/b", "c"), 20 * 10**9),
        ({"folders": [".venv"], "max": "2GB"}, (".venv",), 2 * 10**9),
    ],
)
def test_setup_cache_is_off_or_names_folders(
    written: object, folders: tuple[str, ...] | None, most: int | None
) -> None:
    spec = jobfile.parse(minimal(setup="make", setup_cache=written))
    cache = spec.setup_cache
    assert (cache and cache.folders, cache and cache.max) == (folders, most)
    assert jobfile.parse(spec.as_mapping()) == spec


@pytest.mark.parametrize(
    ("written", "field", "fact"),
    [
        ("on", "setup_cache", "is neither off nor a list of folders"),
        (["../x"], "setup_cache.folders[0]", "is not a folder name"),
        (["/opt"], "setup_cache.folders[0]", "is not a folder name"),
        (["."], "setup_cache.folders[0]", "is not a folder name"),
        (["data/x"], "setup_cache.folders[0]", "is not made by setup"),
        (["a", "a"], "setup_cache.folders", "names a twice"),
        (["a/b", "a"], "setup_cache.folders", "names a/b, which lies in a"),
        ({"folders": ["a"], "max": "1KB"}, "setup_cache.max", "greater than or equal"),
        ({"folder": ["a"]}, "setup_cache.folder", "unknown key"),
    ],
)
def test_what_setup_cache_cannot_be_is_refused(written: object, field: str, fact: str) -> None:
    refused = problems(minimal(setup="make", setup_cache=written))
    assert fact in refused[field].fact
    assert refused[field].hint


def test_setup_cache_needs_a_setup() -> None:
    assert problems(minimal(setup_cache=["a"]))["setup_cache"].fact == "means nothing without setup"

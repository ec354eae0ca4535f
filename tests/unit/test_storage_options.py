"""`checkpoint.storage.options`: which there are, which are refused, and what is never shown."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spothop import storageoptions
from spothop.jobfile import JobFileError, JobSpec, parse, read_yaml
from spothop.storage import ObjectStore, StorageBadUrl, StorageUnavailable, open_store
from spothop.storage.redacted import redacted
from spothop.storageoptions import MASK, SHOWN, Redactor, provider_of
from spothop.wire import InitFrom, StorageSpec

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCY"
MINIO = {
    "endpoint": "http://minio:9000",
    "allow_http": "true",
    "access_key_id": SECRET[:20],
    "secret_access_key": SECRET,
}


def job(storage: object) -> dict[str, Any]:
    return {"name": "j", "run": "true", "checkpoint": {"storage": storage}}


def problem(storage: object) -> tuple[str, str, str, str]:
    with pytest.raises(JobFileError) as caught:
        parse(job(storage))
    [found] = caught.value.problems
    return found.field, found.value, found.fact, found.hint


# --- the lists ----------------------------------------------------------------------------------


STUBS = {"_aws": "S3", "_gcs": "GCS", "_azure": "AZURE", "_client": "CLIENT"}
OF_THE_URL = {"bucket", "container_name"}
NO_TEXT = {"default_headers"}
ALIASES = {"aws_endpoint_url_s3"}


@pytest.mark.parametrize("module", STUBS)
def test_the_names_are_those_of_obstore(module: str) -> None:
    """Its typed dictionaries are in stubs only; an option that it has got is to be listed too."""
    stub = Path(obstore.__file__).parent / "_store" / f"{module}.pyi"
    [config] = re.findall(r"class \w+Config\(.*?(?=\nclass |\Z)", stub.read_text(), re.DOTALL)
    names = set(re.findall(r"^    ([a-z_0-9]+): ", config, re.MULTILINE))
    assert names - OF_THE_URL - NO_TEXT - ALIASES <= getattr(storageoptions, STUBS[module])


def test_what_looks_like_a_secret_is_one_unless_it_names_a_place() -> None:
    harmless = {
        *("container_authorization_token_file", "container_credentials_full_uri"),
        *("container_credentials_relative_uri", "credential_type", "fabric_token_service_url"),
        *("federated_token_file", "sse_bucket_key_enabled", "sse_kms_key_id", "skip_signature"),
        "web_identity_token_file",
    }
    looks = re.compile(r"key|secret|token|passw|sas|credential|signature")
    assert {name for name in SHOWN if looks.search(name)} == harmless


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("s3://b/p", "S3"),
        ("gs://b", "GCS"),
        ("az://account/c", "Azure"),
        ("abfss://c@a.dfs.core.windows.net/p", "Azure"),
        ("https://a.blob.core.windows.net/c", "Azure"),
        ("https://id.r2.cloudflarestorage.com/b", "S3"),
        ("https://b.s3.us-east-1.amazonaws.com", "S3"),
        ("https://example.org/data", "HTTP"),
        ("file:///tmp", None),
        ("http://[x", None),
    ],
)
def test_the_provider_follows_from_the_url(url: str, provider: str | None) -> None:
    assert provider_of(url) == provider


# --- the job file -------------------------------------------------------------------------------


def test_a_plain_url_stays_a_plain_url() -> None:
    spec = parse(job("s3://b/p"))
    assert spec.checkpoint.storage is not None
    assert spec.checkpoint.storage.spec() == StorageSpec(url="s3://b/p")
    assert spec.as_mapping()["checkpoint"]["storage"] == "s3://b/p"


def test_options_come_through_whole() -> None:
    spec = parse(job({"url": "s3://b/p", "options": {**MINIO, "allow_http": True}}))
    assert spec.checkpoint.storage is not None
    assert spec.checkpoint.storage.spec() == StorageSpec(url="s3://b/p", options=MINIO)
    assert parse(spec.as_mapping()) == spec


def test_a_misspelled_option_is_named_with_its_value_and_the_right_name() -> None:
    found = problem({"url": "s3://b/p", "options": {**MINIO, "endpont": "http://x:1"}})
    assert found == (
        "checkpoint.storage.options.endpont",
        "'http://x:1'",
        "unknown option of S3 storage",
        "did you mean endpoint?",
    )


@pytest.mark.parametrize(
    ("url", "name", "hint"),
    [
        ("s3://b", "aws_secret_access_key", "did you mean secret_access_key?"),
        ("s3://b", "secert_acess_key", "did you mean secret_access_key?"),
        ("gs://b", "secret_access_key", "did you mean service_account_key?"),
        ("az://a/c", "azure_storage_sas_key", "did you mean sas_key?"),
        ("s3://b", "zzz", "known: access_key_id, "),
        ("file:///tmp", "secret_access_key", "leave it out"),
    ],
)
def test_the_value_of_an_unknown_option_is_not_shown(url: str, name: str, hint: str) -> None:
    field, value, fact, way_out = problem({"url": url, "options": {name: SECRET}})
    assert (field, value) == (f"checkpoint.storage.options.{name}", f"'{MASK}'")
    assert way_out.startswith(hint)
    assert SECRET not in fact + way_out


@pytest.mark.parametrize(
    "storage",
    [
        {"url": "s3://b", "options": [SECRET]},
        {"url": "s3://b", "options": SECRET},
        {"url": "s3://b", "options": {"secret_access_key": [SECRET]}},
        {"url": "s3://b", "options": {"endpoint": {"secret_access_key": SECRET}}},
        {"ulr": "s3://b", "options": {"secret_access_key": SECRET}},
        {"url": "s3://b", "secret_access_key": SECRET},
        {"url": "s3://b", "option": {"secret_access_key": SECRET}},
        {"url": 7, "options": {"secret_access_key": SECRET}},
        [{"options": {"secret_access_key": SECRET}}],
        f"s3://key:{SECRET}@bucket/p",
        f"https://a.blob.core.windows.net/c?sig={SECRET}",
        {"url": f"s3://key:{SECRET}@bucket/p"},
        {"url": "s3://b", "options": {"secret_access_key": MASK}},
    ],
)
def test_no_problem_shows_a_secret(storage: object) -> None:
    for whole in (job(storage), {"name": "j", "run": "true", "storage": storage}):
        with pytest.raises(JobFileError) as caught:
            parse(whole)
        assert SECRET not in str(caught.value)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:SECRET@bucket/x",
        "s3://key:SEC@RET@bucket/x",
        "s3://key:SECRET word@bucket/x",
        "s3://bucket/x?secret_access_key=SECRET",
        "az://account/c?sv=1&sig=SECRET",
        "http://host/c?sig=SECRET",
        "https://account.blob.core.windows.net/c?se=1&sig=SECRET",
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        lambda url: {"checkpoint": {"storage": url}},
        lambda url: {"checkpoint": {"storage": {"url": url}}},
        lambda url: {"checkpoint": {"init_from": url}},
        lambda url: {"data": {"train": url}},
    ],
)
def test_no_url_with_a_secret_is_taken_or_shown(
    url: str, place: Callable[[str], dict[str, Any]]
) -> None:
    """A URL is shown with its job, wherever in the job file it stands."""
    with pytest.raises(JobFileError) as raised:
        parse({"name": "a", "run": "x", **place(url)})
    assert "SEC" not in str(raised.value)
    assert "RET" not in str(raised.value)


@pytest.mark.parametrize("sign", ["*", "!"])
def test_a_password_that_yaml_takes_for_something_else_is_not_shown(
    tmp_path: Path, sign: str
) -> None:
    file = tmp_path / "job.yaml"
    options = f"{{secret_access_key: {sign}{SECRET} }}"
    file.write_text(
        f"name: a\nrun: x\ncheckpoint: {{storage: {{url: s3://b, options: {options}}}}}"
    )
    with pytest.raises(JobFileError, match="line 3") as raised:
        read_yaml(file)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert "quotes" in raised.value.problems[0].hint


def test_aliases_that_expand_to_gigabytes_cost_nothing(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    lines += ["checkpoint: {storage: {url: s3://b, options: {endpoint: *a11, zzz: *a11}}}"]
    path = tmp_path / "job.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(JobFileError) as caught:
        parse(read_yaml(path))
    assert len(str(caught.value)) < 3000


# --- what is shown ------------------------------------------------------------------------------


def test_no_representation_of_a_spec_shows_a_secret() -> None:
    spec = parse(job({"url": "s3://b/p", "options": MINIO}))
    assert spec.checkpoint.storage is not None
    storage = spec.checkpoint.storage.spec()
    for each in (spec, spec.checkpoint, storage, InitFrom(storage=storage), [storage]):
        for text in (repr(each), str(each), f"{each}"):
            assert SECRET[:20] not in text
            assert "minio:9000" in text


def test_what_users_are_shown_keeps_the_address_alone() -> None:
    spec = StorageSpec(url="s3://b", options={**MINIO, "proxy_url": f"http://me:{SECRET}@proxy"})
    assert spec.masked().options == {
        "endpoint": "http://minio:9000",
        "allow_http": "true",
        "access_key_id": MASK,
        "secret_access_key": MASK,
        "proxy_url": f"http://{MASK}@proxy",
    }
    assert spec.masked().without_masked().options == {
        "endpoint": "http://minio:9000",
        "allow_http": "true",
    }


def test_a_job_file_as_it_is_shown() -> None:
    spec = parse(job({"url": "s3://b/p", "options": MINIO})).as_mapping()
    shown = storageoptions.masked_spec(spec)
    assert SECRET[:20] not in str(shown)
    assert shown["checkpoint"]["keep"] == 2
    assert spec["checkpoint"]["storage"]["options"] == MINIO


@given(
    st.dictionaries(
        st.sampled_from(sorted(storageoptions.ALL)) | st.text(max_size=20),
        st.text(min_size=12, max_size=40).map(lambda text: f"<{text}>"),
        max_size=5,
    )
)
def test_only_listed_names_are_ever_shown(options: dict[str, str]) -> None:
    shown = str(storageoptions.masked(options))
    for name, value in options.items():
        if name not in SHOWN:
            assert storageoptions.shown(name, value) == MASK
    assert shown.count(MASK) >= sum(name not in SHOWN for name in options)


# --- another URL of the same job ----------------------------------------------------------------


def test_data_at_the_same_provider_is_read_with_the_same_options() -> None:
    spec = StorageSpec(url="s3://b/p", options=MINIO)
    assert spec.at("s3://other/data") == StorageSpec(url="s3://other/data", options=MINIO)
    assert spec.at("gs://other/data") == StorageSpec(url="gs://other/data")


# --- errors of a store --------------------------------------------------------------------------


def test_a_bad_value_is_told_without_the_secrets_beside_it() -> None:
    options = {**MINIO, "checksum_algorithm": SECRET}
    with pytest.raises(StorageBadUrl) as caught:
        open_store(StorageSpec(url="s3://b/p", options=options))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


class _Talkative:
    """Says everything that it knows."""

    url = "s3://b"

    def get(self, key: str) -> bytes:
        raise StorageUnavailable(f"SignatureDoesNotMatch for {SECRET}", hint=f"not {SECRET}")

    def scan(self, prefix: str) -> Any:
        yield 1
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise StorageUnavailable(f"https://a/c?sv=1&sig={SECRET[:9]}%2B failed") from error


def test_no_error_of_a_store_shows_what_it_was_opened_with() -> None:
    talkative: Any = _Talkative()
    store: ObjectStore = redacted(talkative, Redactor({"secret_access_key": SECRET}))
    assert store.url == "s3://b"
    for call in (lambda: store.get("k"), lambda: list(store.scan("p"))):
        with pytest.raises(StorageUnavailable) as caught:
            call()
        told = "".join(traceback.format_exception(caught.value))
        assert SECRET[:9] not in told + caught.value.message + caught.value.hint
        assert caught.value.retryable


def test_a_store_without_secrets_is_used_as_it_is() -> None:
    assert not Redactor({"endpoint": "http://minio:9000"}).has_secrets


def test_a_signature_is_found_in_every_writing() -> None:
    redact = Redactor({"sas_key": "sv=2022-11-02&sig=abc%2Bdef%2Fghi%3D"})
    for text in ("abc%2Bdef%2Fghi%3D", "abc+def/ghi=", "sv=2022-11-02&sig=abc%2Bdef%2Fghi%3D"):
        assert redact(f"x {text} y") in (f"x {MASK} y", f"x {MASK} y")


def test_the_specs_model_is_the_same_either_way() -> None:
    assert JobSpec.model_validate(job("s3://b")) == JobSpec.model_validate(job({"url": "s3://b"}))


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("file:///x", {}, ""),
        ("s3://b", {}, "the VM's environment or its role"),
        ("s3://b", {"access_key_id": "AKIA1", "endpoint": "e"}, "access_key_id in checkpoint.sto"),
        ("s3://b", {"skip_signature": "True"}, "nowhere (option skip_signature)"),
        ("az://a/c", {"sas_key": "sig=1"}, "sas_key in checkpoint.storage.options"),
    ],
)
def test_where_credentials_come_from(url: str, options: dict[str, str], said: str) -> None:
    found = storageoptions.credentials_of(url, options)
    assert found.startswith(said)
    assert not any(value in found for name, value in options.items() if name not in SHOWN)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ghp_TOKEN@github.com/a/b.git", "https://***@github.com/a/b.git"),
        ("pip install git+https://ghp_TOKEN@host/r@v1", "pip install git+https://***@host/r@v1"),
        ("postgres://me:TOKEN@db/x and s3://TOKEN@b", "postgres://***@db/x and s3://***@b"),
        ("https://b.s3/x?X-Amz-Credential=TOKEN&X-Amz-Signature=TOKEN&v=1",
         "https://b.s3/x?X-Amz-Credential=***&X-Amz-Signature=***&v=1"),
        ("https://h/c?access_token=TOKEN", "https://h/c?access_token=***"),
        ("https://a.b/c?sv=1&sig=TOKEN", "https://a.b/c?sv=1&sig=***"),
        ("abfss://container@account.dfs.core.windows.net/p", None),
        ("https://host/path@v1?mail=a@b", None),
        ("mail a@b about https://host:8080/x", None),
    ],
)  # fmt: skip
def test_a_user_or_a_signature_in_a_url_is_never_shown(text: str, shown: str | None) -> None:
    """A user without a password is a token more often than a name."""
    assert storageoptions.without_password(text) == (shown or text)

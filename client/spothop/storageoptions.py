"""The options of a storage URL: which names there are, and whose values may be shown.

Options are obstore's own (https://developmentseed.org/obstore/latest/api/store/): those of the
store that the URL names, and those of its HTTP client. What the URL says itself (the bucket), what
is no text (`default_headers`) and aliases (`aws_...`) are left out.

Some of them are secrets, and a secret is shown nowhere: on no page, in no answer to a user, in no
event, log or error. The rule is closed: a value is shown only if its name is in `SHOWN`, so that an
option that is new, or misspelled, is never shown by mistake. Only the agent gets the true values.
"""

from __future__ import annotations

import difflib
import ipaddress
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

MASK = "***"
"""Stands for a value that is not shown."""

CLIENT = frozenset(
    {"allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type"}
    | {"http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout"}
    | {"http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host"}
    | {"proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses"}
    | {"read_timeout", "root_certificate", "timeout", "user_agent"}
)
"""Of the HTTP client of every store."""

S3 = frozenset(
    {"access_key_id", "checksum_algorithm", "conditional_put", "container_authorization_token_file"}
    | {"container_credentials_full_uri", "container_credentials_relative_uri"}
    | {"copy_if_not_exists", "default_region", "disable_bulk_delete", "disable_tagging"}
    | {"endpoint", "imdsv1_fallback", "metadata_endpoint", "region", "request_payer", "role_arn"}
    | {"role_session_name", "s3_express", "secret_access_key", "server_side_encryption"}
    | {"session_token", "skip_signature", "sse_bucket_key_enabled", "sse_customer_key_base64"}
    | {"sse_kms_key_id", "sts_endpoint", "unsigned_payload", "virtual_hosted_style_request"}
    | {"web_identity_token_file"}
)
GCS = frozenset(
    {"application_credentials", "base_url", "bearer_token", "service_account"}
    | {"service_account_key", "skip_signature"}
)
AZURE = frozenset(
    {"account_key", "account_name", "authority_host", "client_id", "client_secret"}
    | {"credential_type", "disable_tagging", "encryption_key", "endpoint"}
    | {"fabric_cluster_identifier", "fabric_session_token", "fabric_token_service_url"}
    | {"fabric_workload_host", "federated_token_file", "msi_endpoint", "msi_resource_id"}
    | {"object_id", "sas_key", "skip_signature", "tenant_id", "token", "use_azure_cli"}
    | {"use_emulator", "use_fabric_endpoint"}
)

ALL = CLIENT | S3 | GCS | AZURE
SHOWN = ALL - {
    *("access_key_id", "secret_access_key", "session_token", "sse_customer_key_base64"),
    *("bearer_token", "service_account", "service_account_key", "application_credentials"),
    *("account_key", "client_secret", "encryption_key", "fabric_session_token", "sas_key", "token"),
}
"""Names whose values are no secrets: addresses, switches, and files that only a VM can read."""

CREDENTIALS = (ALL - SHOWN - {"sse_customer_key_base64", "encryption_key"}) | {
    *("container_credentials_full_uri", "container_credentials_relative_uri"),
    *("federated_token_file", "use_azure_cli", "web_identity_token_file"),
}
"""Names of those that say who we are; what is not here comes from the environment or a role."""

AZURE_SCHEMES = frozenset({"az", "azure", "adl"})
"""Of Azure's, those whose URLs begin with an account: `az://ACCOUNT/CONTAINER/path`."""

_OF_SCHEME = {
    **dict.fromkeys(("s3", "s3a"), "S3"),
    "gs": "GCS",
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs"), "Azure"),
    **dict.fromkeys(("http", "https"), "HTTP"),
}
_OF_HOST = {
    ".amazonaws.com": "S3",
    ".r2.cloudflarestorage.com": "S3",
    ".core.windows.net": "Azure",
    ".fabric.microsoft.com": "Azure",
}
_OPTIONS = {"S3": S3 | CLIENT, "GCS": GCS | CLIENT, "Azure": AZURE | CLIENT, "HTTP": CLIENT}

_LOOKS_SECRET = re.compile(r"key|secret|token|passw|sas|credential|signature", re.IGNORECASE)
_USER = re.compile(
    r"(?<=://)[^/'\"\n]{1,256}:[^/'\"\n]{0,256}(?=@)"
    r"|(?<=://)(?<!abfs://)(?<!abfss://)(?<!wasb://)(?<!wasbs://)[^/\s'\":@?#]{1,256}(?=@)"
)
"""User and password, up to the last `@` before a slash: whoever forgets to encode a password may
have one in it. And a user alone, which may be a token; but in Azure's URLs it is a container."""
_SIGNED = re.compile(
    r"([?&](?:sig|[\w.-]{0,40}(?:signature|token|credential|secret|passw(?:or)?d|key))=)[^&\s'\"]+",
    re.IGNORECASE,
)
"""What a query says of who may read: Azure's, Amazon's and Google's signatures, and tokens."""
_QUERY = re.compile(r"(?<=\?)[^\s)\"'\]]+")
_SHORTEST = 8
"""Characters of a secret that is looked for in texts: a shorter one would be found everywhere. No
provider has any; MinIO's smallest secret has 8."""


def folder_of(url: str) -> str | None:
    """The folder that a `file://` URL names, without `.` and `..`; None for any other URL."""
    try:
        parts = split_url(url)
    except ValueError:
        return None
    path = unquote(parts.path)
    if parts.scheme != "file" or not path.startswith("/") or "\0" in path:
        return None
    return posixpath.normpath("/" + path.lstrip("/"))


def split_url(url: str) -> SplitResult:
    """Raises ValueError for what no store can be reached at, the same on every Python: up to 3.11.3
    `urlsplit` takes any text in brackets for a host."""
    parts = urlsplit(url)
    if "[" in parts.netloc:
        ipaddress.IPv6Address(parts.hostname or "")
    return parts


def provider_of(url: str) -> str | None:
    """`S3`, `GCS`, `Azure` or `HTTP`, as obstore chooses by scheme and host; None for others."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return None
    provider = _OF_SCHEME.get(parts.scheme)
    if provider == "HTTP":
        return next((name for end, name in _OF_HOST.items() if host.endswith(end)), provider)
    return provider


def refusals(url: str, options: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Of each option that this URL does not take: its name, the fact, and a hint."""
    provider = provider_of(url)
    if provider is None:
        scheme = url.partition("://")[0]
        for name in options:
            yield name, f"{scheme}:// takes no options", "leave it out"
        return
    known = _OPTIONS[provider]
    for name, value in options.items():
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"known: {', '.join(sorted(known))}"
            yield name, f"unknown option of {provider} storage", hint
        elif not isinstance(value, str):
            yield name, "should be text", 'put it in quotes, such as "true"'
        elif MASK in value:
            yield name, "is the mask of a secret, not the secret", "write the true value"


def credentials_of(url: str, options: Mapping[str, str]) -> str:
    """Where the credentials for this storage come from, for people: no value is told, only names;
    empty where none are needed."""
    if provider_of(url) is None:
        return ""
    if options.get("skip_signature", "").lower() == "true":
        return "nowhere (option skip_signature)"
    if given := sorted(CREDENTIALS & options.keys()):
        return f"{', '.join(given)} in checkpoint.storage.options"
    return "the VM's environment or its role (checkpoint.storage.options holds none)"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; aliases begin with the provider's name."""
    plain = re.sub(r"^(aws|google|azure(_storage)?)_", "", name.lower())
    found = difflib.get_close_matches(plain, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def shown(name: str, value: str) -> str:
    """The value as anybody may see it."""
    if name not in SHOWN:
        return MASK
    return without_password(value)


def masked(options: Mapping[str, str]) -> dict[str, str]:
    """The options as anybody may see them."""
    return {name: shown(name, value) for name, value in options.items()}


def without_password(url: str) -> str:
    """Nor user name, nor a signature or token in its query."""
    return _SIGNED.sub(rf"\1{MASK}", _USER.sub(MASK, url))


def masked_spec(spec: Mapping[str, Any], *, env_values: bool = False) -> dict[str, Any]:
    """A valid job file as users may see it; also one that an earlier version has accepted. Of `env`
    everybody sees the names; with `env_values` also what does not look like a secret."""
    checkpoint = dict(spec.get("checkpoint") or {})
    storage = checkpoint.get("storage")
    if isinstance(storage, (list, tuple)):
        checkpoint["storage"] = [_masked_storage(each) for each in storage]
    elif storage:
        checkpoint["storage"] = _masked_storage(storage)
    if source := checkpoint.get("init_from"):
        checkpoint["init_from"] = without_password(source)
    data = {folder: without_password(url) for folder, url in (spec.get("data") or {}).items()}
    if env := spec.get("env"):
        spec = {**spec, "env": {name: _of_env(name, env[name], env_values) for name in env}}
    if alarms := spec.get("alarms"):
        hidden = {key: MASK for key in ("webhook", "secret") if alarms.get(key)}
        spec = {**spec, "alarms": {**alarms, **hidden}}
    return {**spec, **({"checkpoint": checkpoint} if checkpoint else {}), "data": data}


def _masked_storage(storage: Any) -> Any:
    if not isinstance(storage, Mapping):
        return without_password(storage)
    found = {**storage, "url": without_password(storage["url"])}
    if options := storage.get("options"):
        found["options"] = masked(options)
    return found


def _of_env(name: str, value: Any, shown: bool) -> str:
    return MASK if not shown or looks_secret(name) else without_password(str(value))


def masked_values(value: Any, *, levels: int = 4, items: int = 8) -> Any:
    """Anything of a job file, whatever is wrong with it: what may be a secret is masked.

    In an `options:` the rule above holds; elsewhere a key that looks like a secret hides its value.
    No deeper than `levels`, and no more than `items` of each: the aliases of a YAML file may expand
    to more than fits any memory.
    """
    if not isinstance(value, (Mapping, list, tuple)):
        return _without_secrets(value) if isinstance(value, str) else value
    if levels == 0:
        return MASK
    inner = partial(_masked_item, levels=levels - 1, items=items)
    if isinstance(value, Mapping):
        return {key: inner(str(key), item) for key, item in islice(value.items(), items)}
    return [inner("", item) for item in islice(value, items)]


def _without_secrets(text: str) -> str:
    url = "://" in text[:20]
    return _QUERY.sub(MASK, without_password(text)) if url else without_password(text)


def _masked_item(key: str, item: Any, *, levels: int, items: int) -> Any:
    if looks_secret(key) or (key == "options" and not isinstance(item, Mapping)):
        return MASK
    if key == "options":
        few = islice(item.items(), items)
        return {name: MASK if str(name) not in SHOWN else value for name, value in few}
    return masked_values(item, levels=levels, items=items)


def looks_secret(name: str) -> bool:
    """By its words; for names that may be misspelled or in a wrong place."""
    return name not in SHOWN and _LOOKS_SECRET.search(name) is not None


class Redactor:
    """Takes the secrets among `options` out of texts that others wrote, such as obstore's errors.

    A signature may be in the query of an address, encoded anew: no query is shown at all.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        found: set[str] = set()
        for name, value in options.items():
            if shown(name, value) != value:
                parts = {value, *(part for _, part in parse_qsl(value))}
                found |= {form for part in parts for form in (part, quote(part, ""), unquote(part))}
        longest_first = sorted((f for f in found if len(f) >= _SHORTEST), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._finds = bool(longest_first)
        self.has_secrets = bool(found)

    def __call__(self, text: str) -> str:
        if self._finds:
            text = self._pattern.sub(MASK, text)
        return _QUERY.sub(MASK, without_password(text)) if self.has_secrets else text

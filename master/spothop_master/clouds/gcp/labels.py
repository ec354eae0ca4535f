"""Our tags as labels of GCP, and back. Pure.

Labels have lower-case letters, digits, `-` and `_`, 63 characters at most, and keys begin with a
letter (https://cloud.google.com/compute/docs/labeling-resources). What else a tag has is written as
`_` and the two hexadecimal digits of each byte, `_` itself too: what is read is what was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from spothop_master.clouds.base import BadRequest

MOST = 63
TOKEN = "spothop-token"
"""The label with the client token of the launch."""

_PLAIN = re.compile(r"[-a-z0-9]")
_ESCAPED = re.compile(rb"_([0-9a-f]{2})")


def encoded(text: str) -> str:
    """Raises BadRequest for what would be longer than a label may be."""
    parts = (char if _PLAIN.fullmatch(char) else _hex(char) for char in text)
    label = "".join(parts)
    if len(label) > MOST:
        raise BadRequest(f"{text!r} has {len(label)} characters as a label; GCP takes {MOST}")
    return label


def decoded(label: str) -> str:
    """Of a label that is not ours: something readable."""
    raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), label.encode())
    return raw.decode("utf-8", "replace")


def of_tags(tags: Mapping[str, str], *, token: str) -> dict[str, str]:
    """Raises BadRequest."""
    labels = {encoded(key): encoded(value) for key, value in sorted(tags.items())}
    for key in labels:
        if not "a" <= key[:1] <= "z":
            raise BadRequest(f"{key!r} is no key of a label: it begins with no letter")
    return {**labels, TOKEN: encoded(token)}


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    """Those of the launch, without what we set beside them."""
    return {decoded(key): decoded(value) for key, value in labels.items() if key != TOKEN}


def _hex(char: str) -> str:
    return "".join(f"_{byte:02x}" for byte in char.encode())

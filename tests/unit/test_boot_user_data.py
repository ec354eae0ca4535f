"""The user data as text: pure, small, and with nothing in it that leaves its quotes."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spothop.wire import AgentConfig, Dialect
from spothop_master.boot import user_data

SHELL = shutil.which("dash") or "/bin/sh"
ZIPS = {"any": "b" * 64, "cpython-312-x86_64-linux-gnu": "a" * 64}
CONFIG = AgentConfig(
    master="https://203.0.113.7:8900",
    token="t" * 43,
    vm="vm-1",
    dialect=Dialect.AWS,
    directory="/var/lib/spothop",
    ca="-----BEGIN CERTIFICATE-----\n" + "A" * 560 + "\n-----END CERTIFICATE-----\n",
)


def test_the_same_launch_has_the_same_bytes() -> None:
    script = user_data.render(CONFIG, ZIPS)
    assert script == user_data.render(CONFIG.model_copy(), dict(reversed(ZIPS.items())))
    assert user_data.sha256_of(script) != user_data.sha256_of(user_data.render(CONFIG, {}))
    assert script.startswith("#!/bin/sh\n")
    assert script.isascii()
    assert len(script) < user_data.MOST / 2


@pytest.mark.parametrize("dialect", [Dialect.AWS, Dialect.AZURE])
def test_the_shell_can_read_it(dialect: Dialect) -> None:
    script = user_data.render(CONFIG.model_copy(update={"dialect": dialect}), ZIPS)
    done = subprocess.run([SHELL, "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    bashisms = ("[[", "function ", "local ", "source ", "<<<", "&>", "$'")
    assert not [word for word in bashisms if word in script]


def test_only_a_vm_of_azure_is_given_the_program_that_deletes_it() -> None:
    url = "https://management.azure.com"
    told = {
        dialect: url in user_data.render(CONFIG.model_copy(update={"dialect": dialect}), ZIPS)
        for dialect in Dialect
    }
    assert told == {Dialect.AWS: False, Dialect.AZURE: True, Dialect.GCP: False}


@settings(max_examples=20, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
def test_no_value_leaves_its_quotes(value: str) -> None:
    config = CONFIG.model_copy(update={"vm": value, "token": value})
    head, _, _ = user_data.render(config, ZIPS).partition("# Set above")
    done = subprocess.run(
        [SHELL, "-c", head + '\nprintf "%s\\0%s" "$VM" "$CONFIG"'],
        capture_output=True,
        check=True,
        env={"PATH": os.defpath},
    )
    vm, _, text = done.stdout.decode().partition("\0")
    assert vm == value
    assert AgentConfig.model_validate_json(text) == config


def test_the_masters_python_is_looked_for_first() -> None:
    assert "\nPY3=python3.12\n" in user_data.render(CONFIG, ZIPS)
    assert "\nPY3=python3\n" in user_data.render(CONFIG, {"any": "b" * 64})


def test_what_clouds_do_not_take_is_refused() -> None:
    with pytest.raises(user_data.TooLong, match="clouds take 16384"):
        user_data.render(CONFIG.model_copy(update={"ca": "A" * 12_000}), ZIPS)
    with pytest.raises(ValueError, match="no tag"):
        user_data.render(CONFIG, {"a b": "0" * 64})

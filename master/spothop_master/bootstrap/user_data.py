"""The user data of the master's VM: `first_boot.py` with its configuration above it. Pure."""

from __future__ import annotations

from pathlib import Path

from spothop_master.bootstrap.on_vm import VmConfig

PROGRAM = Path(__file__).with_name("first_boot.py")


def render(config: VmConfig) -> str:
    """A program that cloud-init runs; the same configuration gives the same bytes."""
    text = config.model_dump_json(exclude_defaults=True)
    return f"#!/usr/bin/env python3\nCONFIG = {text!r}\n{PROGRAM.read_text('utf-8')}"

"""`python -m spothop.cli`: the same program where its script is not on the path."""

from __future__ import annotations

from spothop.cli import main

main()

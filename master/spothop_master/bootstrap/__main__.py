"""`python -m spothop_master.bootstrap`."""

from __future__ import annotations

import typer

from spothop_master.bootstrap.program import main

if __name__ == "__main__":
    typer.run(main)

"""`python -m spothop.simulator`."""

import io
import sys

from spothop.simulator.cli import app

for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):  # a name may hold what the terminal cannot
        stream.reconfigure(errors="backslashreplace")
app(prog_name="spothop simulate")

"""`python -m spothop_master.simulator`."""

import io
import sys

from spothop_master.simulator.cli import app

for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):  # a name may hold what the terminal cannot
        stream.reconfigure(errors="backslashreplace")
app(prog_name="spothop simulate")

"""`python -m spothop_master.simulator`."""

from spothop_master.simulator.cli import app

app(prog_name="spothop simulate")

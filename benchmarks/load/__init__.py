"""The parts of `master_load.py`: rows of a fleet, a master that serves them, its agents."""

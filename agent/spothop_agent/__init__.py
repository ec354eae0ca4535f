"""The agent: one per VM. It starts the job, watches for notices, and backs checkpoints up."""

__version__ = "0.1.0"

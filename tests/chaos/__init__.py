"""A chaos suite over the local cloud: `python -m tests.chaos --seeds 1-200`. See README.md."""

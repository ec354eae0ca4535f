"""`python -m tests.chaos --seeds 1-200`: see README.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

if __name__ == "__main__":
    from chaos import program

    sys.exit(program.main(sys.argv[1:]))

"""`python -m spothop_agent --config FILE`: imports the program, then runs it.

Without garbage collection meanwhile: what is imported stays, and looking through it again and again
is a fifth of the CPU time of a start, which each VM pays. Nor do later collections look at it.
"""

from __future__ import annotations

import gc


def main() -> None:
    gc.disable()
    from spothop_agent import program

    gc.freeze()
    gc.enable()
    program.leave(program.main())


if __name__ == "__main__":
    main()

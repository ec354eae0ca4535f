"""`python -m spothop_master`: imports the program, then runs it.

Without garbage collection meanwhile: what is imported stays, and looking through it again and again
is a tenth of the CPU time of a start. Nor do later collections look at it.
"""

from __future__ import annotations

import gc
import sys


def main() -> None:
    gc.disable()
    import typer

    from spothop_master import operations

    if arguments := operations.asked_for(sys.argv[1:]):
        operations.app(arguments, prog_name="spothop master")
    from spothop_master.program import serve

    gc.freeze()
    gc.enable()
    typer.run(serve)


if __name__ == "__main__":
    main()

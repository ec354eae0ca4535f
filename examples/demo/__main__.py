"""`make demo`: see `demo.py`. Its imports take half a second, in which Ctrl-C has nothing to clean
up: it ends the program without a trace."""

from __future__ import annotations

import signal
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from demo import main

if __name__ == "__main__":
    sys.exit(main())

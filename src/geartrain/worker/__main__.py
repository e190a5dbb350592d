"""The child process: greet, load the model, set it up, run its predictions.

Its arguments: the descriptors of the control channel, of the call channel and of the alarm, and the processors that it
is pinned to, if any.
"""

from __future__ import annotations

import gc
import os
import sys

if __name__ == "__main__":
    if len(sys.argv) > 4 and hasattr(os, "sched_setaffinity"):  # noqa: PLR2004 - as above
        os.sched_setaffinity(0, map(int, sys.argv[4:]))  # first of all: threads of libraries inherit it

    gc.disable()  # the worker's own modules stay: passes over them are 40 ms of the 190 ms that its start and end take
    from geartrain.worker.runtime.session import main

    gc.freeze()
    gc.enable()
    sys.exit(main())

"""The child process: greet, load the model, set it up, run its predictions."""

from __future__ import annotations

import sys

from geartrain.worker.runtime.session import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m geartrain`."""

from __future__ import annotations

from geartrain.cli.main import main

if __name__ == "__main__":
    main()

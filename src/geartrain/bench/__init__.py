"""Measures a server under load: what `geartrain bench` does, apart from the terminal. See docs/bench.md."""

"""A small model that tests serve by its class."""

from __future__ import annotations

from geartrain import BaseRunner


class Upper(BaseRunner):
    def run(self, text: str) -> str:
        return text.upper()

"""As `noop`, but async: many predictions share one worker."""

from cog import BaseRunner


class Runner(BaseRunner):
    async def run(self, s: str) -> str:
        return s

"""mosec's worker: gives its input back, as Cog's API would answer. Called with `--port`."""

from __future__ import annotations

from mosec import Runtime, Server, Worker


class Noop(Worker):
    def forward(self, data: dict) -> dict:
        return {"status": "succeeded", "output": data["input"]["s"]}


if __name__ == "__main__":
    server = Server()
    server.register_runtime({"/predictions": [Runtime(Noop)]})
    server.run()

"""The least that a model of whole requests does."""

import json

from geartrain import BaseRunner, Request, Response


class Runner(BaseRunner):
    def run(self, request: Request) -> Response:
        return Response({"output": json.loads(request.body)["input"] + 1})

"""A model for tests of the APIs that give text, and the readers of their streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.servers import LiveServer

# It does what the last message says: a list in JSON is what it gives, piece by piece. Some pieces are orders. For every
# other text it gives its inputs.
PLAYER = """
    import json
    import select
    from collections.abc import Iterator
    from geartrain import BaseRunner, Input, current_scope
    from geartrain.openai import Delta, Message

    class Runner(BaseRunner):
        def run(
            self,
            messages: list[Message],
            tools: list[dict] = [],
            tool_choice: str | dict = "auto",
            parallel_tool_calls: bool = True,
            response_format: dict = {},
            max_tokens: int = Input(default=100, ge=1),
            temperature: float = Input(default=1.0, ge=0.0, le=2.0),
            reasoning_effort: str = "",
            verbosity: str = "",
            logprobs: bool = False,
            top_logprobs: int = 0,
            count_tokens: bool = False,
        ) -> Iterator[Delta]:
            given = dict(locals())
            del given["self"]
            scope = current_scope()
            scope.record_metric("tokens.prompt", sum(len(str(one.get("content")).split()) for one in messages))
            if count_tokens:
                return
            text = messages[-1]["content"]
            if not isinstance(text, str) or not text.startswith("["):
                yield {"content": json.dumps(given)}
                return
            for piece in json.loads(text):
                if "metric" in piece:
                    scope.record_metric(*piece["metric"])
                elif "fail" in piece:
                    raise ValueError(piece["fail"])
                elif "wait" in piece:
                    with open(piece["wait"], "rb", buffering=0) as gate:
                        select.select([gate], [], [])
                else:
                    yield piece
"""
# A model that takes a prompt, and nothing but text.
WRITER = """
    from geartrain import BaseRunner, ConcatenateIterator, Input

    class Runner(BaseRunner):
        def run(self, prompt: str, max_new_tokens: int = Input(default=9, ge=1)) -> ConcatenateIterator[str]:
            for word in prompt.split()[:max_new_tokens]:
                yield word + " "
"""

CALL = [
    {"reasoning": "the user wants "},
    {"reasoning": "weather"},
    {"content": "let me see"},
    {"tool_calls": [{"index": 0, "id": "call_1", "name": "weather", "arguments": '{"city"'}]},
    {"tool_calls": [{"index": 0, "arguments": ': "Ulm"}'}]},
    {"tool_calls": [{"index": 1, "id": "call_2", "name": "weather", "arguments": '{"city": "Bonn"}'}]},
]


def play(*pieces: Any) -> str:
    """Return the text that makes `PLAYER` give these pieces."""
    return json.dumps([{"content": piece} if isinstance(piece, str) else piece for piece in pieces])


async def named_events(server: LiveServer, path: str, **body: Any) -> list[tuple[str, Any]]:
    """Return the names and data of the events of a stream."""
    response = await server.client.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events

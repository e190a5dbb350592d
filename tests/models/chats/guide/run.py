"""A guide to gears that does what the last message of a chat says.

`wait` is answered word by word, the last one when there is a file GATES/guide. `weather` calls a tool, `fail` fails after
a while, `hostile` gives what a page must not run, and everything else gets an explanation.
"""

import json
import os
import pathlib
import time
from collections.abc import Iterator

from geartrain import BaseRunner, Input, current_scope
from geartrain.openai import Delta, Message

ANSWER = """\
A **gear train** passes turning from one gear to the next. Its ratio is that of the teeth:

| gear | teeth | turns |
|---|---|---|
| driver | 12 | 3 |
| follower | 36 | 1 |

```python
def ratio(driver: int, follower: int) -> float:
    return follower / driver
```

- a *small* driver turns fast,
- a large follower turns slowly, with more force.
"""
HOSTILE = """\
<script>window.harm = 1</script> <img src=x onerror="window.harm = 1">

[a link](javascript:window.harm=1) and ![a picture](https://elsewhere.invalid/x.png)

```html
<img src=x onerror="window.harm = 1">
```
"""


class Runner(BaseRunner):
    """Explains gears, and calls tools."""

    def run(
        self,
        messages: list[Message],
        tools: list[dict] = Input(default=[], description="Functions that may be called"),  # noqa: B008 - not changed
        temperature: float = Input(default=0.7, ge=0, le=2, description="0 takes the likeliest word"),
        max_tokens: int = Input(default=256, ge=1, le=1024, description="The most words to write"),
    ) -> Iterator[Delta]:
        """Answer the last message."""
        scope = current_scope()
        scope.record_metric("tokens.prompt", sum(len(str(each.get("content")).split()) for each in messages))
        last = messages[-1]
        text = str(last["content"])
        system = [str(each["content"]) for each in messages if each["role"] == "system"]
        if last["role"] == "tool":
            yield {"content": f"The tool has given **{text}**."}
            return
        if "weather" in text and tools:
            name = tools[0]["function"]["name"]
            yield {"reasoning": "The weather is not mine to know. "}
            yield {"reasoning": "A tool knows it."}
            yield {"tool_calls": [{"index": 0, "id": "call_1", "name": name, "arguments": '{"city": '}]}
            yield {"tool_calls": [{"index": 0, "arguments": json.dumps("Ulm") + "}"}]}
            return
        if "hostile" in text:
            yield {"content": HOSTILE}
            return
        if "parameters" in text:
            yield {"content": f"temperature {temperature}, max_tokens {max_tokens}, turns {len(messages)}"}
            return
        yield {"reasoning": "The reader asks about gears: a definition, a table and a line of code."}
        words = "".join([*(f"{each} " for each in system), ANSWER]).split(" ")
        for number, word in enumerate(words[:max_tokens], 1):
            scope.record_metric("tokens.completion", number)
            yield {"content": word if number == 1 else f" {word}"}
            time.sleep(0.005)
            if "fail" in text and number == 9:
                raise ValueError("the gear is broken")
            while "wait" in text and number == 40 and not pathlib.Path(os.environ["GATES"], "guide").exists():
                time.sleep(0.01)
        if len(words) > max_tokens:
            yield {"finish_reason": "length"}

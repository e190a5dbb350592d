"""The example models that the clients ask, by name: a source, and what stands in its `geartrain.yaml`."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from tests.support.text_apis import PLAYER, WRITER

EMBED = """
    from geartrain import BaseRunner, current_scope

    class Runner(BaseRunner):
        def run(self, texts: list[str]) -> list[list[float]]:
            current_scope().record_metric("tokens.prompt", sum(len(text.split()) for text in texts))
            return [[float(len(text)), 0.5, -1.0] for text in texts]
"""
RANK = """
    import select
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def run(self, query: str, documents: list[str]) -> list[float]:
            if query.startswith("wait "):
                with open(query.removeprefix("wait "), "rb", buffering=0) as gate:
                    select.select([gate], [], [])
            if query == "fail":
                raise ValueError("it went wrong")
            return [len(set(query) & set(each)) / len(set(query)) for each in documents]
"""
LISTENER = """
    from collections.abc import Iterator
    from geartrain import BaseRunner, Path
    from geartrain.openai import Segment

    class Runner(BaseRunner):
        def run(self, audio: Path, language: str = "en") -> Iterator[Segment]:
            for number, word in enumerate(audio.read_text().split()):
                yield {"start": float(number), "end": number + 0.5, "text": word}
"""
SPEAKER = """
    import tempfile
    from geartrain import BaseRunner, Path
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("speech", input="text")
        def run(self, text: str, voice: str = "anna") -> Path:
            sound = Path(tempfile.mkdtemp()) / "speech.mp3"
            sound.write_text(f"{voice}: {text}")
            return sound
"""
PAINTER = """
    import tempfile
    from geartrain import BaseRunner, Path
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("images")
        def run(self, prompt: str, image: Path | None = None, size: str = "auto") -> Path:
            picture = Path(tempfile.mkdtemp()) / "picture.png"
            picture.write_text(f"{prompt} {size} {image.read_text() if image else ''}")
            return picture
"""
JUDGE = """
    from geartrain import BaseRunner
    from geartrain.openai import endpoint

    class Runner(BaseRunner):
        @endpoint("moderations")
        def run(self, text: str) -> dict[str, float]:
            return {"violence": 0.9 if "fight" in text else 0.1}
"""
VIEWER = """
    from geartrain import BaseRunner, Path

    class Runner(BaseRunner):
        def chat_prompt(self, messages: list[dict]) -> str:
            parts = messages[-1]["content"]
            return parts if isinstance(parts, str) else "".join(part.get("text", "<image>") for part in parts)

        def run(self, prompt: str, images: list[Path] = []) -> str:
            return f"{prompt} {[image.read_text() for image in images]}"
"""
TOKENS = """
    def run(prompt: str | list[int]) -> str:
        return repr(prompt)
"""
EMBED_TOKENS = """
    def run(texts: list[str] | list[list[int]]) -> list[list[float]]:
        return [[float(len(each)), -1.0 if isinstance(each, str) else float(sum(each))] for each in texts]
"""
SHOUT = '''
    from geartrain import BaseRunner, Input

    class Runner(BaseRunner):
        """Shouts a text."""

        def run(self, text: str = Input(description="What to shout")) -> str:
            return text.upper()
'''
LOUD = """
    from geartrain import BaseRunner, ConcatenateIterator, Input

    class Runner(BaseRunner):
        def run(self, prompt: str, max_tokens: int = Input(default=16, ge=1)) -> ConcatenateIterator[str]:
            for word in prompt.upper().split()[:max_tokens]:
                yield word + " "
"""
LATE = """
    import time
    from geartrain import BaseRunner

    class Runner(BaseRunner):
        def setup(self) -> None:
            time.sleep(3600)

        def run(self, prompt: str) -> str:
            return prompt
"""

READY = {
    "player": (PLAYER, ""),
    "writer": (WRITER, ""),
    "loud-writer": (LOUD, ""),  # that of docs/openai.md
    "embed": (EMBED, ""),
    "embed-tokens": (EMBED_TOKENS, ""),
    "tokens": (TOKENS, ""),
    "viewer": (VIEWER, ""),
    "rank": (RANK, ""),
    "rank-busy": (RANK, "queue: 0\n"),  # as "busy"
    "rank-slow": (RANK, "timeout: 0.2\n"),
    "listener": (LISTENER, ""),
    "speaker": (SPEAKER, ""),
    "painter": (PAINTER, ""),
    "judge": (JUDGE, ""),
    "shout": (SHOUT, ""),
    "busy": (PLAYER, "queue: 0\n"),  # its one slot is taken all the time
    "slow": (PLAYER, "timeout: 0.2\n"),
}
NEVER_READY = {"late": (LATE, "")}


def write_models(folder: Path) -> None:
    """Write all of them into a folder."""
    for name, (source, settings) in {**READY, **NEVER_READY}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "run.py").write_text(dedent(source))
        (folder / name / "geartrain.yaml").write_text(settings)

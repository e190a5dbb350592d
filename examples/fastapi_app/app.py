"""A FastAPI application that serves a model beside a route of its own.

    pip install geartrain fastapi uvicorn
    uvicorn app:app

The model is that of examples/hello. Its whole API is below `/ml`: `/ml/predictions`, `/ml/v2/…`, `/ml/docs`.

    curl -s localhost:8000/greetings/Ada
    curl -s localhost:8000/ml/predictions -H 'Content-Type: application/json' -d '{"input":{"name":"Ada"}}'
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

import geartrain

models = geartrain.asgi(Path(__file__).parents[1] / "hello", wait_ready=True)
app = FastAPI(title="Greetings", lifespan=models.lifespan)
app.mount("/ml", models)


@app.get("/greetings/{name}")
async def greet(name: str) -> dict[str, str]:
    return {"greeting": f"Good day, {name}."}

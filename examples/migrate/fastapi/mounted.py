from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import Body, FastAPI, HTTPException

import geartrain

models = geartrain.asgi(Path(__file__).parent, wait_ready=True)
inside = httpx.AsyncClient(transport=httpx.ASGITransport(models), base_url="http://models", timeout=60)
app = FastAPI(lifespan=models.lifespan)
app.mount("/ml", models)


@app.post("/classify")
async def classify(flower: Annotated[dict[str, Any], Body()]) -> Any:
    answer = await inside.post("/predictions", json={"input": flower})
    body = answer.json()
    if answer.is_error or body["status"] != "succeeded":
        raise HTTPException(answer.status_code if answer.is_error else 500, body.get("detail") or body.get("error"))
    return body["output"]

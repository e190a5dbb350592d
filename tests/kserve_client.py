"""Asks a server with KServe's own clients and writes what they got, as JSON: `kserve_client.py URL GRPC_ADDRESS MODEL`.

A program of its own, because its generated messages and those of tritonclient cannot be loaded into one process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def request(model: str) -> InferRequest:
    tensor = InferInput(name="numbers", shape=[3], datatype="FP64", data=[1.5, -2.0, 0.25])
    return InferRequest(model_name=model, request_id="42", infer_inputs=[tensor])


def seen(response: Any) -> dict[str, Any]:
    output = response.outputs[0]
    values = output.as_numpy().tolist()
    return {"id": response.id, "model": response.model_name, "name": output.name, "values": values}


async def ask(url: str, address: str, model: str) -> dict[str, Any]:
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    grpc = InferenceGRPCClient(address)
    try:
        return {
            "rest": seen(await rest.infer(url, request(model), model_name=model)),
            "rest ready": await rest.is_model_ready(url, model),
            "rest ready of another": await rest.is_model_ready(url, "another"),
            "grpc": seen(await grpc.infer(request(model))),
            "grpc live": await grpc.is_server_live(),
            "grpc ready": await grpc.is_server_ready(),
            "grpc model ready": await grpc.is_model_ready(model),
            "grpc ready of another": await grpc.is_model_ready("another"),
        }
    finally:
        await rest.close()
        await grpc.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(ask(*sys.argv[1:4]))))

"""Asks a server with KServe's own clients and writes what they got, as JSON:
`kserve_client.py URL GRPC_ADDRESS MODEL [AUTHORITY KEY]`: over TLS and with a key, where these are given.

A program of its own, because its generated messages and those of tritonclient cannot be loaded into one process.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from typing import Any

import httpx
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.rest import v2_datamodels as kserve


def request(model: str) -> InferRequest:
    tensor = InferInput(name="numbers", shape=[3], datatype="FP64", data=[1.5, -2.0, 0.25])
    return InferRequest(model_name=model, request_id="42", infer_inputs=[tensor])


def seen(response: Any) -> dict[str, Any]:
    output = response.outputs[0]
    values = output.as_numpy().tolist()
    return {"id": response.id, "model": response.model_name, "name": output.name, "values": values}


def request_with_nulls() -> dict[str, Any]:
    """A request as KServe's own types write it: what is left out is null."""
    tensor = kserve.RequestInput(name="numbers", shape=[3], datatype="FP64", data=[1.5, -2.0, 0.25])
    body = kserve.InferenceRequest(id="42", inputs=[tensor]).model_dump()
    assert body["parameters"] is body["outputs"] is body["inputs"][0]["parameters"] is None
    return dict(body)


async def metadata(url: str, model: str, **options: Any) -> dict[str, Any]:
    """What its client has no calls for, read by the types that its server answers with."""
    async with httpx.AsyncClient(base_url=url, **options) as client:
        server, one, models = [
            (await client.get(path)).raise_for_status().json() for path in ("/v2", f"/v2/models/{model}", "/v2/models")
        ]
    found = kserve.ModelMetadataResponse.model_validate(one)
    return {
        "server": kserve.ServerMetadataResponse.model_validate(server).name,
        "model": [found.name, found.versions, *[tensor.name for tensor in (*found.inputs, *found.outputs)]],
        "models": kserve.ListModelsResponse.model_validate(models).models,
    }


async def ask(url: str, address: str, model: str, authority: str = "", key: str = "") -> dict[str, Any]:
    trust = ssl.create_default_context(cafile=authority) if authority else True
    headers = {"authorization": f"Bearer {key}"} if key else {}
    rest = InferenceRESTClient(RESTConfig(protocol="v2", verify=trust))
    grpc = InferenceGRPCClient(address, use_ssl=bool(authority), root_certificates=authority or None)
    allowed = tuple(headers.items())
    try:
        return {
            "rest": seen(await rest.infer(url, request(model), model_name=model, headers=headers)),
            "rest with nulls": seen(await rest.infer(url, request_with_nulls(), model_name=model, headers=headers)),
            "rest metadata": await metadata(url, model, verify=trust, headers=headers),
            "rest live": await rest.is_server_live(url),
            "rest server ready": await rest.is_server_ready(url),
            "rest ready": await rest.is_model_ready(url, model),
            "rest ready of another": await rest.is_model_ready(url, "another"),
            "grpc": seen(await grpc.infer(request(model), headers=allowed)),
            "grpc live": await grpc.is_server_live(),
            "grpc ready": await grpc.is_server_ready(),
            "grpc model ready": await grpc.is_model_ready(model),
            "grpc ready of another": await grpc.is_model_ready("another"),
        }
    finally:
        await rest.close()
        await grpc.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(ask(*sys.argv[1:]))))

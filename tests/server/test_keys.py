"""A server with `--keys`: Cog's API, the Open Inference Protocol over REST, and gRPC ask for the same keys."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from geartrain.transport.access.guard import ANY_MODEL
from geartrain.transport.access.keys import Key, KeyRing, add_key, digest_of, new_key, revoke_key
from geartrain.transport.access.options import AccessError
from tests.support.servers import ServerProcess, write_model

MODEL = """
    def run(text: str = "hello") -> str:
        return text
"""
APP = "https://app.example.com"
STATUS = grpc.StatusCode
SOON = 40.0  # seconds: a revoked key works for about one, on a machine that is not busy


class Keyed:
    """A server of two models, `ecg` at the root and `pets`, and what its clients need."""

    def __init__(self, folder: Path) -> None:
        for name in ("ecg", "pets"):
            write_model(folder / "models" / name, MODEL)
        self.file = folder / "keys"
        self.all = self.add("all", ("predict", "read", "admin"))
        self.reader = self.add("reader", ("read",))
        self.ecg = self.add("ecg", ("predict", "read"), ("ec*",))
        self.process = ServerProcess(
            str(folder / "models"),
            *("--keys", str(self.file), "--cors-origin", APP, "--default-model", "ecg", "--grpc-port", "0"),
        )
        self.url = self.process.wait_for("listening")["url"]
        seen = {self.process.wait_for_one("listening-grpc", "ready").get("url", "") for _ in range(3)}
        self.client = httpx.Client(base_url=self.url, timeout=40)
        self.channel = grpc.insecure_channel(next(filter(None, seen)))
        self.stub: Any = GRPCInferenceServiceStub(self.channel)

    def add(self, name: str, scopes: tuple[str, ...], models: tuple[str, ...] = (ANY_MODEL,)) -> dict[str, str]:
        """Add a key; return the header with it."""
        secret = new_key()
        add_key(self.file, Key(name, scopes, digest_of(secret), models))
        return {"authorization": f"Bearer {secret}"}

    def close(self) -> None:
        self.channel.close()
        self.client.close()
        self.process.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path_factory.mktemp("keys"))
    yield keyed
    keyed.close()


def predict(server: Keyed, headers: Mapping[str, str], path: str = "/predictions") -> httpx.Response:
    return server.client.post(path, json={"input": {"text": "hi"}}, headers=headers)


def infer(server: Keyed, headers: Mapping[str, str], model: str = "ecg") -> httpx.Response:
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}]
    return server.client.post(f"/v2/models/{model}/infer", json={"inputs": inputs}, headers=headers)


def message(model: str = "ecg") -> Any:
    return pb.ModelInferRequest(
        model_name=model,
        inputs=[pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])],
        raw_input_contents=[struct.pack("<I", 2) + b"hi"],
    )


def code_of(call: Callable[..., Any], request: Any, headers: Mapping[str, str]) -> grpc.StatusCode:
    try:
        call(request, metadata=tuple(headers.items()), timeout=40)
    except grpc.RpcError as error:
        failed: Any = error
        code: grpc.StatusCode = failed.code()
        return code
    return STATUS.OK


# Cog's API


def test_cogs_api_asks_for_a_key(server: Keyed) -> None:
    refused = predict(server, {})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json() == {
        "error": "This server requires a key. Send it in a header: Authorization: Bearer KEY",
        "status": "failed",
    }
    assert predict(server, {"authorization": f"Bearer {new_key()}"}).status_code == 401
    assert predict(server, server.all).json()["output"] == "hi"


def test_cogs_api_looks_at_scopes_and_models(server: Keyed) -> None:
    refused = predict(server, server.reader)
    assert (refused.status_code, refused.json()["status"]) == (403, "failed")
    assert refused.json()["error"] == "The key 'reader' does not have the scope 'predict'."
    assert predict(server, server.ecg).status_code == 200
    assert predict(server, server.ecg, "/models/ecg/predictions").status_code == 200
    refused = predict(server, server.ecg, "/models/pets/predictions")
    assert (refused.status_code, refused.json()["error"]) == (403, "The key 'ecg' is not for the model 'pets'.")
    assert predict(server, server.all, "/models/pets/predictions").status_code == 200


def test_key_is_asked_for_before_the_body_is_looked_at(server: Keyed) -> None:
    assert server.client.post("/predictions", content=b"{").status_code == 401


def test_openais_api_looks_for_the_model_of_the_body(server: Keyed) -> None:
    """A model that the key is not for is not there for it, also on a connection whose key was good before."""

    def complete(headers: Mapping[str, str], model: str) -> httpx.Response:
        return server.client.post("/v1/completions", json={"model": model, "prompt": "hi"}, headers=headers)

    others = {each["id"] for each in server.client.get("/v1/models", headers=server.all).json()["data"]} - {"ecg"}
    assert [each["id"] for each in server.client.get("/v1/models", headers=server.ecg).json()["data"]] == ["ecg"]
    for other in others:
        assert complete(server.all, other).status_code != 404
        assert complete(server.ecg, "ecg").status_code not in {403, 404}
        refused = complete(server.ecg, other)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert server.client.get(f"/v1/models/{other}", headers=server.ecg).status_code == 404
    assert others
    assert complete({}, "ecg").json()["error"]["code"] == "invalid_api_key"
    assert complete(server.reader, "ecg").status_code == 403


def test_key_of_anthropics_api_comes_in_its_own_header(server: Keyed) -> None:
    given = {"model": "ecg", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    key = server.all["authorization"].removeprefix("Bearer ")

    def ask(headers: Mapping[str, str]) -> httpx.Response:
        return server.client.post("/v1/messages", json=given, headers=headers)

    refused = ask({})
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert ask({"x-api-key": new_key()}).status_code == 401
    assert ask({"x-api-key": key}).status_code not in {401, 403, 404}
    assert ask({"x-api-key": key, "authorization": f"Bearer {new_key()}"}).status_code == 401
    reader = server.reader["authorization"].removeprefix("Bearer ")
    refused = ask({"x-api-key": reader})
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")


def test_shutdown_is_for_admins_of_all_models(server: Keyed) -> None:
    assert server.client.post("/shutdown").status_code == 401
    assert server.client.post("/shutdown", headers=server.reader).status_code == 403
    assert server.client.get("/health-check").status_code == 200


@pytest.mark.parametrize(
    "path", ["/health-check", "/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/v2/models/pets/ready"]
)
def test_health_needs_no_key(server: Keyed, path: str) -> None:
    assert server.client.get(path).status_code == 200


def test_health_has_details_for_those_who_may_read(server: Keyed) -> None:
    assert server.client.get("/health-check").json() == {"status": "READY"}
    assert server.client.get("/models/pets/health-check").json() == {"status": "READY"}
    assert "setup" in server.client.get("/health-check", headers=server.reader).json()
    assert "setup" in server.client.get("/models/pets/health-check", headers=server.reader).json()


def test_what_concerns_all_models_needs_a_key_for_all(server: Keyed) -> None:
    for path in ("/v2/models", "/v2/models/stats", "/models"):
        assert server.client.get(path, headers=server.ecg).status_code == 403
        assert server.client.get(path, headers=server.reader).status_code == 200
    assert server.client.post("/v2/repository/index", headers=server.ecg).status_code == 403


def test_metrics_need_a_key_for_all_models(server: Keyed) -> None:
    assert server.client.get("/metrics").status_code == 401
    assert server.client.get("/metrics", headers=server.ecg).status_code == 403
    assert server.client.get("/metrics", headers=server.reader).status_code == 200


# REST


def test_rest_asks_for_a_key_in_its_own_words(server: Keyed) -> None:
    refused = infer(server, {})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.json() == {"error": "This server requires a key. Send it in a header: Authorization: Bearer KEY"}
    refused = infer(server, server.ecg, "pets")
    assert (refused.status_code, refused.json()) == (403, {"error": "The key 'ecg' is not for the model 'pets'."})
    assert infer(server, server.ecg).status_code == 200
    assert infer(server, server.all, "pets").status_code == 200


def test_rest_keeps_the_repository_for_admins(server: Keyed) -> None:
    load = "/v2/repository/models/pets/load"
    assert server.client.post(load).status_code == 401
    assert server.client.post(load, headers=server.reader).status_code == 403
    assert server.client.post(load, headers=server.all).status_code == 200


# a key that is revoked


def count_until(refused: Callable[[], bool]) -> int:
    """How often something was asked until it was refused, without a pause between."""
    count = 0
    end = time.monotonic() + SOON
    while not refused():
        count += 1
        assert time.monotonic() < end, "a revoked key still works"
    return count


def test_revoked_key_stops_on_a_connection_that_is_in_use(server: Keyed) -> None:
    headers = server.add("http", ("predict",))
    count_until(lambda: predict(server, headers).status_code == 200)
    revoke_key(server.file, "http")
    count_until(lambda: predict(server, headers).status_code == 401)
    assert predict(server, server.all).status_code == 200


def test_revoked_key_stops_over_grpc(server: Keyed) -> None:
    headers = server.add("grpc", ("predict",))
    count_until(lambda: code_of(server.stub.ModelInfer, message(), headers) is STATUS.OK)
    revoke_key(server.file, "grpc")
    count_until(lambda: code_of(server.stub.ModelInfer, message(), headers) is STATUS.UNAUTHENTICATED)


def test_broken_file_changes_nothing(server: Keyed) -> None:
    good = server.file.read_text()
    server.file.write_text(good + "what is\n")
    with pytest.raises(AccessError) as caught:
        KeyRing(server.file, lambda: None)
    server.process.wait_for(f"{caught.value}. The keys stay as they were.")
    assert predict(server, server.all).status_code == 200
    server.file.write_text(good)
    assert predict(server, server.all).status_code == 200


# browsers and hosts


def test_page_of_another_site_is_refused_and_an_allowed_one_is_not(server: Keyed) -> None:
    evil = {**server.all, "origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    refused = predict(server, evil)
    assert refused.status_code == 403
    assert "--cors-origin" in refused.json()["error"]
    assert "access-control-allow-origin" not in refused.headers
    answer = predict(server, {**server.all, "origin": APP, "sec-fetch-site": "cross-site"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, APP)
    unauthenticated = predict(server, {"origin": APP, "sec-fetch-site": "cross-site"})
    assert (unauthenticated.status_code, unauthenticated.headers["access-control-allow-origin"]) == (401, APP)


def test_preflight_is_answered_for_allowed_pages(server: Keyed) -> None:
    headers = {"origin": APP, "access-control-request-method": "POST"}
    answer = server.client.options("/v2/models/ecg/infer", headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, APP)
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    foreign = server.client.options("/v2/models/ecg/infer", headers={**headers, "origin": "http://evil.example"})
    assert (foreign.status_code, "access-control-allow-origin" in foreign.headers) == (405, False)


def test_foreign_host_is_not_served_on_the_loopback(server: Keyed) -> None:
    refused = server.client.get("/health-check", headers={"host": "evil.example"})
    assert refused.status_code == 403
    assert "--allowed-host" in refused.json()["error"]
    assert server.client.get("/health-check", headers={"host": "localhost:1"}).status_code == 200


# gRPC


@pytest.mark.parametrize(
    ("call", "request_", "expected"),  # without a key, and for the keys all, reader and ecg
    [
        ("ServerLive", pb.ServerLiveRequest(), ("OK", "OK", "OK", "OK")),
        ("ModelReady", pb.ModelReadyRequest(name="pets"), ("OK", "OK", "OK", "OK")),
        ("ModelInfer", message(), ("UNAUTHENTICATED", "OK", "PERMISSION_DENIED", "OK")),
        ("ModelInfer", message("pets"), ("UNAUTHENTICATED", "OK", "PERMISSION_DENIED", "PERMISSION_DENIED")),
        ("ModelMetadata", pb.ModelMetadataRequest(name="ecg"), ("UNAUTHENTICATED", "OK", "OK", "OK")),
        ("ModelMetadata", pb.ModelMetadataRequest(name="pets"), ("UNAUTHENTICATED", "OK", "OK", "PERMISSION_DENIED")),
        (
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name="pets"),
            ("UNAUTHENTICATED", "OK", "PERMISSION_DENIED", "PERMISSION_DENIED"),
        ),
    ],
)
def test_grpc_asks_for_the_same_keys(server: Keyed, call: str, request_: Any, expected: tuple[str, ...]) -> None:
    keys: tuple[dict[str, str], ...] = ({}, server.all, server.reader, server.ecg)
    assert tuple(code_of(getattr(server.stub, call), request_, key).name for key in keys) == expected


def test_grpc_health_needs_no_key(server: Keyed) -> None:
    health: Any = health_pb2_grpc.HealthStub(server.channel)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=40).status == health_pb2.HealthCheckResponse.SERVING


def test_stream_asks_for_a_key_at_its_begin(server: Keyed) -> None:
    for headers, code in (({}, STATUS.UNAUTHENTICATED), (server.reader, STATUS.PERMISSION_DENIED)):
        call = server.stub.ModelStreamInfer(iter([message()]), metadata=tuple(headers.items()), timeout=40)
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() is code


def test_stream_asks_for_the_model_of_each_request(server: Keyed) -> None:
    requests = iter([message(), message("pets")])
    call = server.stub.ModelStreamInfer(requests, metadata=tuple(server.ecg.items()), timeout=40)
    responses = list(call)
    assert [each.error_message for each in responses if each.error_message] == [
        "The key 'ecg' is not for the model 'pets'."
    ]
    assert [each.infer_response.model_name for each in responses if not each.error_message] == ["ecg"]

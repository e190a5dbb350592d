"""The guard in front of a table of routes: what clients get, whatever answers them."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.apis import cog, open_inference
from geartrain.domain.errors import GeartrainError
from geartrain.domain.tensors.tensor import Buffer
from geartrain.transport.access.access import Access
from geartrain.transport.access.options import AccessOptions
from geartrain.transport.errors import HTTP_STATUS, OPEN_INFERENCE_HTTP_STATUS, error_headers
from geartrain.transport.relay.token import KEY_FIELD, TOKEN_FIELD, read_token
from geartrain.transport.routing import POST, Params, Route, Router
from geartrain.transport.wire.exchange import JSON, NO_RECORD, Accepted, Answer, AnswerStream, Exchange, Head, Responder
from tests.unit.transport.access.parts import head, line, write_keys

APP = "https://app.example.com"
LIMIT = 100


class CogApi:
    """Refuses as Cog's API does."""

    name = "cog"
    shows_logs = True

    def refuse(self, error: GeartrainError) -> Answer:
        status = HTTP_STATUS[error.code]
        return Answer(status, (cog.encode_error(error),), (*JSON, *error_headers(status, error)))

    def not_found(self) -> Answer:
        return Answer(HTTPStatus.NOT_FOUND)

    def wrong_method(self, allowed: str) -> Answer:
        return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (b"",), ((b"allow", allowed.encode()),))


class OpenInferenceApi(CogApi):
    """Refuses as the Open Inference Protocol does."""

    def refuse(self, error: GeartrainError) -> Answer:
        status = OPEN_INFERENCE_HTTP_STATUS[error.code]
        return Answer(status, (open_inference.encode_error(error),), (*JSON, *error_headers(status, error)))


class Answering:
    """An exchange that answers its body; one that is `stream` begins a stream."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def receive(self, body: Buffer) -> None:
        if body == b"stream":
            self._responder.open_stream(HTTPStatus.OK, ((b"content-type", b"text/event-stream"),))
        else:
            self._responder.respond(Answer(HTTPStatus.OK, (body,)))

    def abandon(self) -> None:
        pass


class Stream:
    async def write(self, data: Buffer) -> None:
        pass

    def end(self) -> None:
        pass

    def abort(self) -> None:
        pass


class Client:
    """Takes what a responder is told."""

    def __init__(self) -> None:
        self.record = NO_RECORD
        self.answers: list[Answer] = []

    def respond(self, answer: Answer) -> None:
        self.answers.append(answer)

    def open_stream(self, status: HTTPStatus, headers: tuple[tuple[bytes, bytes], ...]) -> AnswerStream:
        self.answers.append(Answer(status, (), headers))
        return Stream()


def accept(head: Head, params: Params) -> Accepted:
    def new_exchange(responder: Responder) -> Exchange:
        return Answering(responder)

    return Accepted(new_exchange, LIMIT, lambda limit: Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE))


COG, OPEN_INFERENCE = CogApi(), OpenInferenceApi()
ROUTES = (
    Route(("GET",), "/health-check", accept, COG, "open"),
    Route(POST, "/predictions", accept, COG, "predict"),
    Route(POST, "/models/{model}/predictions", accept, COG, "predict"),
    Route(POST, "/shutdown", accept, COG, "admin", "all"),
    Route(("GET",), "/metrics", accept, COG, "read", "all"),
    Route(("GET",), "/v2", accept, OPEN_INFERENCE, "read", "none"),
    Route(("GET",), "/v2/models/{model}", accept, OPEN_INFERENCE, "read"),
    Route(POST, "/v2/models/{model}/versions/{version}/infer", accept, OPEN_INFERENCE, "predict"),
    Route(POST, "/v2/repository/models/{model}/load", accept, OPEN_INFERENCE, "admin"),
    Route(("GET",), "/v2/systemsharedmemory/status", accept, OPEN_INFERENCE, "admin"),
)


def make_router(host: str = "127.0.0.1", default: str | None = "ecg", **options: Any) -> Router:
    return Router(ROUTES, COG, Access(AccessOptions(**options), host).guard(lambda: default))


@pytest.fixture
def keyed(tmp_path: Path) -> Router:
    keys = (
        line("one", "ada", scopes=("predict", "read", "admin")),
        line("two", "bob", scopes=("predict", "read", "admin"), models=("ec*",)),
        line("three", "eve", scopes=("read",)),
        line("four", "pet", scopes=("predict",), models=("pets",)),
    )
    return make_router(keys=write_keys(tmp_path / "keys", *keys))


def status(router: Router, request: Head) -> int:
    decision = router.begin(request)
    return decision.status.value if isinstance(decision, Answer) else 200


def asked(router: Router, method: str, path: str, key: str) -> int:
    return status(router, head(method, path, authorization=f"Bearer {key}"))


@pytest.mark.parametrize(
    ("method", "path", "expected"),  # for the keys one to four: see `keyed`
    [
        ("GET", "/health-check", (200, 200, 200, 200)),
        ("POST", "/predictions", (200, 200, 403, 403)),
        ("POST", "/models/ecg/predictions", (200, 200, 403, 403)),
        ("POST", "/models/pets/predictions", (200, 403, 403, 200)),
        ("POST", "/v2/models/pets/versions/1/infer", (200, 403, 403, 200)),
        ("GET", "/v2/models/ecg", (200, 200, 200, 403)),
        ("GET", "/v2/models/%65cg", (200, 200, 200, 403)),
        ("GET", "/v2", (200, 200, 200, 403)),
        ("GET", "/metrics", (200, 403, 200, 403)),
        ("POST", "/shutdown", (200, 403, 403, 403)),
        ("POST", "/v2/repository/models/ecg/load", (200, 200, 403, 403)),
        ("POST", "/v2/repository/models/pets/load", (200, 403, 403, 403)),
        ("GET", "/v2/systemsharedmemory/status", (200, 403, 403, 403)),  # no model, so it is about all of them
        ("GET", "/nowhere", (404, 404, 404, 404)),
        ("GET", "/predictions", (405, 405, 405, 405)),
    ],
)
def test_scopes_and_models_decide(keyed: Router, method: str, path: str, expected: tuple[int, ...]) -> None:
    assert tuple(asked(keyed, method, path, key) for key in ("one", "two", "three", "four")) == expected


def test_without_a_key_only_what_is_open_answers(keyed: Router) -> None:
    for route in ROUTES:
        request = head(route.methods[0], route.path.replace("{model}", "ecg").replace("{version}", "1"))
        assert status(keyed, request) == (200 if route.scope == "open" else 401), route.path


def body(decision: object) -> tuple[int, bytes, dict[bytes, bytes]]:
    assert isinstance(decision, Answer)
    return decision.status.value, b"".join(map(bytes, decision.parts)), dict(decision.headers)


def test_each_protocol_refuses_in_its_own_shape(keyed: Router) -> None:
    code, text, headers = body(keyed.begin(head("POST", "/predictions", authorization="Bearer no")))
    assert (code, headers[b"www-authenticate"]) == (401, b"Bearer")
    assert text == b'{"error":"The key is not known to this server, or was revoked.","status":"failed"}'
    code, text, headers = body(keyed.begin(head("GET", "/v2/models/ecg")))
    assert (code, headers[b"www-authenticate"]) == (401, b"Bearer")
    assert text == b'{"error":"This server requires a key. Send it in a header: Authorization: Bearer KEY"}'
    code, text, headers = body(keyed.begin(head("GET", "/v2/models/pets", authorization="Bearer two")))
    assert (code, b"www-authenticate" in headers) == (403, False)
    assert text == b"{\"error\":\"The key 'bob' is not for the model 'pets'.\"}"


def test_two_keys_are_none(keyed: Router) -> None:
    fields = [(b"authorization", b"Bearer one"), (b"authorization", b"Bearer one")]
    assert status(keyed, Head("POST", b"/predictions", b"", fields)) == 401


def test_server_without_keys_asks_for_none() -> None:
    router = make_router()
    for route in ROUTES:
        assert status(router, head(route.methods[0], route.path.replace("{model}", "ecg"))) == 200


def test_head_with_a_key_may_be_remembered(keyed: Router) -> None:
    decision = keyed.begin(head("POST", "/predictions", authorization="Bearer one"))
    assert isinstance(decision, Accepted)
    assert decision.is_reusable


def test_change_of_keys_is_told_so_that_heads_are_forgotten(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", line("one"))
    access = Access(AccessOptions(keys=path), "127.0.0.1")
    told: list[str] = []
    access.on_change(lambda: told.append("wire"))
    access.on_change(lambda: told.append("other"))
    router = Router(ROUTES, COG, access.guard(lambda: "ecg"))
    access.refresh()
    assert told == []
    write_keys(path, line("two"))
    access.refresh()
    assert told == ["wire", "other"]
    assert asked(router, "POST", "/predictions", "one") == 401
    assert asked(router, "POST", "/predictions", "two") == 200


def test_default_model_is_asked_for_each_time(tmp_path: Path) -> None:
    default = ["ecg"]
    access = Access(AccessOptions(keys=write_keys(tmp_path / "keys", line("one", models=("ec*",)))), "127.0.0.1")
    router = Router(ROUTES, COG, access.guard(lambda: default[0]))
    assert asked(router, "POST", "/predictions", "one") == 200
    default[0] = "pets"
    assert asked(router, "POST", "/predictions", "one") == 403


def test_foreign_host_is_refused_by_the_protocol_of_its_path() -> None:
    code, text, _ = body(make_router().begin(head("POST", "/v2/models/ecg/versions/1/infer", host="evil.example")))
    assert code == 403
    expected = "This server does not answer for the host 'evil.example'. If it should, start it with --allowed-host."
    assert text.decode() == f'{{"error":"{expected}"}}'
    code, text, _ = body(make_router().begin(head("GET", "/health-check", host="evil.example")))
    assert (code, b'"status":"failed"' in text) == (403, True)
    assert status(make_router("0.0.0.0"), head("GET", "/health-check", host="evil.example")) == 200  # noqa: S104
    assert (
        status(make_router(allowed_hosts=("evil.example",)), head("GET", "/health-check", host="evil.example")) == 200
    )


def test_page_of_another_site_is_refused_before_its_key_is_looked_at(keyed: Router) -> None:
    request = head("POST", "/predictions", origin=APP, sec_fetch_site="cross-site", authorization="Bearer one")
    code, text, headers = body(keyed.begin(request))
    assert (code, b"access-control-allow-origin" in headers) == (403, False)
    assert b"--cors-origin" in text


def test_preflight_needs_no_key(tmp_path: Path) -> None:
    router = make_router(keys=write_keys(tmp_path / "keys", line("one")), cors_origins=(APP,))
    request = head("OPTIONS", "/predictions", origin=APP, access_control_request_method="POST")
    code, _, headers = body(router.begin(request))
    assert (code, headers[b"access-control-allow-origin"]) == (204, APP.encode())
    code, _, headers = body(router.begin(head("OPTIONS", "/predictions", origin="http://evil.example")))
    assert (code, b"access-control-allow-origin" in headers) == (405, False)


@pytest.mark.parametrize("text", [b"now", b"stream"])
def test_every_answer_to_an_allowed_page_can_be_read_by_it(text: bytes) -> None:
    router = make_router(cors_origins=(APP,))
    accepted = router.begin(head("POST", "/predictions", origin=APP))
    assert isinstance(accepted, Accepted)
    client = Client()
    accepted.new_exchange(client).receive(text)
    headers = [name for name, _ in client.answers[0].headers]
    assert headers.count(b"access-control-allow-origin") == 1
    assert headers[0] == b"content-type"
    refused = accepted.refuse_size(LIMIT)
    assert dict(refused.headers)[b"access-control-allow-origin"] == APP.encode()
    for path in ("/nowhere", "/metrics"):
        _, _, fields = body(router.begin(head("POST", path, origin=APP)))
        assert fields[b"access-control-allow-origin"] == APP.encode()


@pytest.mark.parametrize("headers", [{}, {"origin": "http://evil.example"}])
def test_other_answers_are_as_they_were(headers: dict[str, str]) -> None:
    accepted = make_router(cors_origins=(APP,)).begin(head("GET", "/health-check", **headers))
    assert isinstance(accepted, Accepted)
    client = Client()
    accepted.new_exchange(client).receive(b"now")
    assert client.answers == [Answer(HTTPStatus.OK, (b"now",))]


def test_request_of_no_page_costs_no_wrapper() -> None:
    accepted = make_router(cors_origins=(APP,)).begin(head("POST", "/predictions"))
    assert isinstance(accepted, Accepted)
    assert isinstance(accepted.new_exchange(Client()), Answering)


# other servers of a cluster


TOKEN = "t" * 32


@pytest.fixture
def clustered(tmp_path: Path) -> Router:
    (tmp_path / "token").write_text(TOKEN)
    options = AccessOptions(keys=write_keys(tmp_path / "keys", line("one", "ada", scopes=("predict",))))
    guard = Access(options, "127.0.0.1").guard(lambda: "ecg", read_token(tmp_path / "token"))
    mine = Route(("GET",), "/predictions/{id}", accept, COG, "predict", is_relayable=True)
    return Router((*ROUTES, mine), COG, guard)


def relayed(router: Router, path: str, method: str = "GET", token: str = TOKEN, **fields: str) -> tuple[int, Head]:
    request = head(method, path, **fields)
    request = msgspec.structs.replace(request, headers=[*request.headers, (TOKEN_FIELD, token.encode())])
    return status(router, request), request


def test_another_server_needs_no_key_for_what_it_hands_over(clustered: Router) -> None:
    code, request = relayed(clustered, "/predictions/a", host="10.0.0.7:5000")
    assert (code, request.notes.is_relayed, request.notes.key) == (200, True, "")


def test_the_name_of_the_clients_key_comes_with_it(clustered: Router) -> None:
    request = head("GET", "/predictions/a")
    fields = [(TOKEN_FIELD, TOKEN.encode()), (KEY_FIELD, b"ada")]
    request = msgspec.structs.replace(request, headers=[*request.headers, *fields])
    assert (status(clustered, request), request.notes.key) == (200, "ada")


def test_the_token_of_a_cluster_is_no_key_for_anything_else(clustered: Router) -> None:
    assert relayed(clustered, "/predictions", "POST")[0] == 403
    assert relayed(clustered, "/shutdown", "POST")[0] == 403
    assert relayed(clustered, "/v2/repository/models/ecg/load", "POST")[0] == 403


def test_a_wrong_token_is_refused_also_with_a_key(clustered: Router) -> None:
    code, request = relayed(clustered, "/predictions/a", token="f" * 32, authorization="Bearer one")
    assert (code, request.notes.is_relayed) == (401, False)


def test_clients_of_a_cluster_show_their_keys(clustered: Router) -> None:
    assert asked(clustered, "GET", "/predictions/a", "one") == 200
    assert status(clustered, head("GET", "/predictions/a")) == 401


def test_a_server_that_is_alone_takes_no_token(keyed: Router) -> None:
    code, request = relayed(keyed, "/health-check")
    assert (code, request.notes.is_relayed) == (200, False)
    assert relayed(keyed, "/v2")[0] == 401

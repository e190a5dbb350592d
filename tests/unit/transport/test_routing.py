"""The table of routes: which row takes a request, and what is answered where there is none."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from geartrain.domain.errors import Code, GeartrainError
from geartrain.transport.routing import GET, POST, Begin, Guard, Params, Route, Router, Scope, split_path
from geartrain.transport.runs import by_task, size_refusal
from geartrain.transport.wire.exchange import Accepted, Answer, Head
from tests.support.responders import FakeResponder, head_of


class Words:
    """An `Api` that answers in words of its own."""

    shows_logs = False

    def __init__(self, name: str = "api") -> None:
        self.name = name

    def refuse(self, error: GeartrainError) -> Answer:
        return said(f"{self.name}: {error.code}: {error.message}", HTTPStatus.CONFLICT)

    def not_found(self) -> Answer:
        return said(f"{self.name}: not found", HTTPStatus.NOT_FOUND)

    def wrong_method(self, allowed: str) -> Answer:
        return Answer(HTTPStatus.METHOD_NOT_ALLOWED, (self.name.encode(),), ((b"allow", allowed.encode()),))


API = Words()


def said(text: str, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(status, (text.encode(),), ())


def says(text: str) -> Begin:
    """A handler that says its own name and what the path names."""

    def begin(_head: Head, params: Params) -> Answer:
        return said(" ".join([text, *(f"{name}={value}" for name, value in params.items())]))

    return begin


def row(path: str, *, methods: tuple[str, ...] = GET, api: Words = API, begin: Begin | None = None) -> Route:
    return Route(methods, path, begin or says(path), api)


def ask(router: Router, path: str, method: str = "GET") -> tuple[int, str]:
    answer = router.begin(head_of(method, path))
    assert isinstance(answer, Answer)
    (text,) = answer.parts
    return answer.status, bytes(text).decode()


async def nothing(_request: Any) -> Answer:
    return said("nothing")


def accepting(path: str = "/run") -> Route:
    return row(path, methods=POST, begin=by_task(nothing, API, 10))


TABLE = [
    row("/"),
    row("/models"),
    row("/models/stats"),
    row("/models/{model}"),
    row("/models/{model}/ready"),
    row("/models/{model}/versions/{version:version}"),
    row("/models/{model}/versions/{version:version}/ready"),
    row("/files/{path*}"),
    row("/files/index"),
    row("/things/1", methods=POST),
    row("/things/{number:version}"),
    row("/things/{name}"),
    row("/slash/"),
]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("/models", "/models"),
        ("/models/stats", "/models/stats"),
        ("/models/statistics", "/models/{model} model=statistics"),
        ("/models/a", "/models/{model} model=a"),
        ("/m%6Fdels/stat%73", "/models/stats"),
        ("/models/a?b=c/d", "/models/{model} model=a"),
        ("/models/a/ready", "/models/{model}/ready model=a"),
        ("/models/stats/ready", "/models/{model}/ready model=stats"),  # back from the fixed step
        ("/models/a%2Fready", "/models/{model} model=a/ready"),
        ("/models/%C3%A9%20b", "/models/{model} model=é b"),
        ("/models/%FF", "/models/{model} model=\N{REPLACEMENT CHARACTER}"),
        ("/models/..", "/models/{model} model=.."),
        ("/models/versions/versions/01", "/models/{model}/versions/{version:version} model=versions version=01"),
        ("/models/a/versions/7/ready", "/models/{model}/versions/{version:version}/ready model=a version=7"),
        ("/files/a/b%2Fc/", "/files/{path*} path=a/b/c/"),
        ("/files/", "/files/{path*} path="),
        ("/files/index", "/files/index"),
        ("/files/index/x", "/files/{path*} path=index/x"),
        ("/things/22", "/things/{number:version} number=22"),
        ("/things/x2", "/things/{name} name=x2"),
        ("/models/a/versions/v0.1.0", "/models/{model}/versions/{version:version} model=a version=v0.1.0"),
        ("/slash/", "/slash/"),
    ],
)
def test_path(path: str, expected: str) -> None:
    assert ask(Router(TABLE, API), path) == (200, expected)


@pytest.mark.parametrize(
    "path",
    [
        "//",
        "/models/",
        "/models//",
        "/models//ready",
        "/models/a/",
        "/models/a/nope",
        "/models/a/versions",
        "/models/a/versions/",
        "/models/a/versions/x",
        "/models/a/versions/-1",
        "/models/a/versions/%C2%B2",
        "/models/a%2Fversions%2F1/ready/x",
        "/models/a/versions/1/ready/x",
        "/files",
        "/slash",
        "/nope",
    ],
)
def test_no_such_path(path: str) -> None:
    """Whatever the method is."""
    for method in ("GET", "POST"):
        assert ask(Router(TABLE, API), path, method) == (404, "api: not found")


def test_the_protocol_of_the_first_step_answers() -> None:
    router = Router(
        [row("/v2", api=Words("v2")), row("/cog/x"), row("/v2/extra", api=Words("other"))], Words("default")
    )
    assert ask(router, "/v2/nope") == (404, "v2: not found")
    assert ask(router, "/v%32/nope") == (404, "v2: not found")
    assert ask(router, "/cog") == (404, "api: not found")
    assert ask(router, "/nope") == (404, "default: not found")
    assert ask(router, "/v2/extra", "PUT") == (405, "other")


def test_wrong_method_names_those_that_are_taken() -> None:
    router = Router([row("/x/{id}"), row("/x/{id}", methods=("PUT",)), row("/y", methods=POST)], API)
    for method in ("POST", "get", "OPTIONS", "CONNECT"):
        answer = router.begin(head_of(method, "/x/1"))
        assert isinstance(answer, Answer)
        assert (answer.status, dict(answer.headers)[b"allow"]) == (405, b"GET, HEAD, PUT")
    answer = router.begin(head_of("HEAD", "/y"))
    assert isinstance(answer, Answer)
    assert (answer.status, dict(answer.headers)[b"allow"]) == (405, b"POST")
    assert ask(router, "/x/1", "HEAD")[0] == 200


@pytest.mark.parametrize("path", ["/a/b", "/a/{name}", "/a/{number:version}", "/a/{rest*}"])
def test_two_routes_for_the_same_are_a_mistake(path: str) -> None:
    with pytest.raises(ValueError, match=f"two routes for GET {path.replace('*', '[*]')}"):
        Router([row(path), row(path, methods=("PUT", "GET"))], API)


def test_steps_of_a_path() -> None:
    assert split_path(b"/") == [""]
    assert split_path(b"/a/") == ["a", ""]
    assert split_path(b"/a%2Fb/%ff%zz") == ["a/b", "\N{REPLACEMENT CHARACTER}%zz"]


# what goes wrong


def failing(error: Exception) -> Begin:
    def begin(_head: Head, _params: Params) -> Answer:
        raise error

    return begin


@pytest.mark.parametrize(
    ("scope", "named", "shows_logs"), [("predict", "new", False), ("read", "system", True), ("admin", "system", True)]
)
def test_a_protocol_is_named_by_its_own_routes(scope: Scope, named: str, *, shows_logs: bool) -> None:
    """A new protocol needs no list: requests that run a model are counted and logged by the name that it has."""
    router = Router([Route(POST, "/new/{model}", says("here"), Words("new"), scope)], API)
    head = head_of("POST", "/new/m")
    router.begin(head)
    notes = head.notes
    assert (notes.protocol, notes.shows_logs, notes.model) == (named, shows_logs, "m")


def test_error_is_answered_by_the_protocol_of_the_route() -> None:
    error = GeartrainError(Code.NOT_READY, "soon")
    assert ask(Router([row("/x", begin=failing(error))], Words("default")), "/x") == (409, "api: not_ready: soon")


def test_bug_is_an_answer_and_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    router = Router([row("/x", begin=failing(RuntimeError("secret")))], API)
    assert ask(router, "/x") == (409, "api: internal: Internal server error")
    assert "secret" in caplog.text


# who may come in


class Doorman(Guard):
    """Lets nobody read what is secret, and asks anew about `/once`."""

    def check(self, head: Head, route: Route, params: Params) -> bool:
        if params.get("model") == "secret":
            raise GeartrainError(Code.NOT_FOUND, f"not {route.path}")
        return head.path != b"/once"

    def intercept(self, head: Head) -> Answer | None:
        return said("preflight") if head.method == "OPTIONS" else None

    def dress(self, head: Head, answer: Answer) -> Answer:
        return msgspec.structs.replace(answer, headers=(*answer.headers, (b"x-dressed", head.path)))


def test_guard_sees_every_request() -> None:
    router = Router([*TABLE, accepting("/once"), accepting("/run")], API, Doorman())
    assert ask(router, "/models/secret") == (409, "api: not_found: not /models/{model}")
    assert ask(router, "/models/open")[0] == 200
    assert ask(router, "/anywhere", "OPTIONS") == (200, "preflight")
    for path, is_reusable in {"/once": False, "/run": True}.items():
        decision = router.begin(head_of("POST", path, b"x"))
        assert isinstance(decision, Accepted)
        assert decision.is_reusable is is_reusable


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/nope"), ("PUT", "/"), ("GET", "/models/secret")])
def test_guard_dresses_every_answer_that_is_given_at_once(method: str, path: str) -> None:
    answer = Router(TABLE, API, Doorman()).begin(head_of(method, path))
    assert isinstance(answer, Answer)
    assert dict(answer.headers)[b"x-dressed"] == path.encode()


def test_nobody_is_kept_out_without_a_guard() -> None:
    router = Router([accepting()], API)
    decision = router.begin(head_of("POST", "/run"))
    assert isinstance(decision, Accepted)
    assert decision.is_reusable


# endpoints that are coroutines


async def test_coroutine_gets_the_request() -> None:
    async def endpoint(request: Any) -> Answer:
        return said(f"{request.params['model']} {request.head.method} {request.body.decode()}")

    router = Router([row("/{model}", methods=POST, begin=by_task(endpoint, API, 10))], API)
    decision = router.begin(head_of("POST", "/a%20b", b"body"))
    assert isinstance(decision, Accepted)
    assert decision.max_body == 10
    for _ in range(2):
        responder = FakeResponder()
        decision.new_exchange(responder).receive(b"body")
        assert await responder.answer() == said("a b POST body")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GeartrainError(Code.CONFLICT, "taken"), "api: conflict: taken"),
        (RuntimeError("secret"), "api: internal: Internal server error"),
    ],
)
async def test_coroutine_that_fails(error: Exception, text: str) -> None:
    async def endpoint(_request: Any) -> Answer:
        raise error

    responder = FakeResponder()
    exchange = by_task(endpoint, API, 10)(head_of("POST", "/x"), {})
    assert isinstance(exchange, Accepted)
    exchange.new_exchange(responder).receive(b"")
    assert await responder.answer() == said(text, HTTPStatus.CONFLICT)


def test_body_that_is_too_large_is_refused_as_the_protocol_does() -> None:
    (text,) = size_refusal(API)(10).parts
    assert bytes(text).startswith(b"api: too_large: The request body is larger than the limit of 10 bytes.")

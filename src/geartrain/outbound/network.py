"""The HTTP clients. For URLs that clients gave, every connection goes to an address that the policy has passed.

Imports httpx, so it is itself imported only when the first such URL is met.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, cast

import httpcore
import httpx

from geartrain.domain.predictions.tracing import current_outgoing
from geartrain.outbound.client_span import TRACE_FIELDS, ClientSpan

if TYPE_CHECKING:
    from geartrain.outbound.policy import UrlPolicy


CONNECT_SECONDS = 10.0
_READ = 1 << 16  # bytes read at most of an answer that is not needed
_READ_SECONDS = 1.0
_IDLE_SECONDS = 3.0  # an idle connection is used no later than this: web servers close theirs after 5 s or more

_NETWORK_ERRORS = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpx.TransportError)

# The URLs and headers in their own log lines carry signatures and passwords.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

Resolver = Callable[[str, int], Awaitable[list[str]]]


class TracedClient(httpx.AsyncClient):
    """A client whose requests have a span, and tell of it, where they are for a prediction that is recorded.

    Redirects are not followed by it: one is a request of its own, as is a second try. A span begins with its request
    and ends with the body of the answer.
    """

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send one request; see `httpx.AsyncClient.send`."""
        outgoing = current_outgoing()
        if outgoing is None:
            return await super().send(request, stream=stream, **options)
        url = request.url
        span = ClientSpan(
            outgoing,
            request.method,
            url=str(url.copy_with(username=None, password=None, query=None, fragment=None)),
            host=url.host,
            port=url.port or (443 if url.scheme == "https" else 80),
        )
        for name in TRACE_FIELDS:
            request.headers.pop(name, None)
        request.headers.update(span.headers)
        try:
            response = await super().send(request, stream=stream, **options)
        except BaseException as error:
            span.fail(error)
            raise
        if response.is_closed:
            span.end(response.status_code)
        else:
            response.stream = _TracedBody(cast("httpx.AsyncByteStream", response.stream), span, response.status_code)
        return response


class _TracedBody(httpx.AsyncByteStream):
    """The body of an answer, whose end is that of the span."""

    def __init__(self, inner: httpx.AsyncByteStream, span: ClientSpan, status: int) -> None:
        self._inner = inner
        self._span = span
        self._status = status

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                yield piece
        except Exception as error:
            self._span.fail(error)
            raise

    async def aclose(self) -> None:
        """Close it, and end the span."""
        await self._inner.aclose()
        self._span.end(self._status)


async def resolve(host: str, port: int) -> list[str]:
    """The numeric addresses of `host`, in the order to try them.

    Raises httpcore.ConnectError: the name is unknown or is none.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"the name {host} cannot be resolved") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens the connections of a pool: resolves the host once, asks the policy, connects to the number that passed.

    TLS is not touched by this: the certificate is checked against the name in the URL. Unix sockets are refused.
    """

    def __init__(self, policy: UrlPolicy, resolver: Resolver = resolve) -> None:
        self._policy = policy
        self._resolver = resolver
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the backend's interface
        *options: Any,
        **named_options: Any,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first admitted address that answers; all of them share the time.

        Raises AddressRefusedError: no address of `host` is admitted.
        Raises httpcore.ConnectError: or `ConnectTimeout`: none answered.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + (CONNECT_SECONDS if timeout is None else timeout)
        try:
            async with asyncio.timeout_at(ends):
                addresses = self._policy.admit(host, await self._resolver(host, port))
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time") from error
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for index, address in enumerate(addresses):
            share = max(ends - loop.time(), 0.0) / (len(addresses) - index)
            try:
                return await self._inner.connect_tcp(address, port, share, *options, **named_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        try:
            raise failure
        finally:
            del failure  # it refers to this frame: a cycle


class _Body(httpx.AsyncByteStream):
    """A response's body as httpx wants it."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._response.aiter_stream():
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()


class GuardedTransport(httpx.AsyncBaseTransport):
    """A connection pool on a `GuardedBackend`. Its errors are httpcore's, and `AddressRefusedError`."""

    def __init__(self, backend: GuardedBackend, tls: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls, network_backend=backend, max_connections=None, keepalive_expiry=_IDLE_SECONDS
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; redirects are the client's affair."""
        response = await self._pool.handle_async_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=cast("httpx.AsyncByteStream", request.stream),
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response), extensions=response.extensions
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


def open_download_client(
    policy: UrlPolicy, *, tls: ssl.SSLContext, timeout: float, user_agent: str
) -> httpx.AsyncClient:
    """A client for the files of one prediction, so that no cookie and no connection outlives it.

    `timeout` is the longest silence of a server, in seconds. Proxies and `.netrc` of the environment are not used: a
    proxy would resolve the name and connect instead of the server, past the policy, and `.netrc` would send the
    operator's passwords wherever a client points. Redirects are not followed by it, for it would read the bodies of
    the redirecting answers without a limit.
    """
    return TracedClient(
        transport=GuardedTransport(GuardedBackend(policy), tls),
        timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS, pool=None),
        headers={"User-Agent": user_agent, "Accept": "*/*", "Accept-Encoding": "gzip"},
        trust_env=False,
        follow_redirects=False,
    )


def open_guarded_client(policy: UrlPolicy, *, tls: ssl.SSLContext, timeout: float) -> httpx.AsyncClient:
    """A client for what many predictions send: guarded as that for downloads, and without a memory for cookies.

    `timeout` is the longest silence of a receiver, in seconds.
    """
    return TracedClient(
        transport=GuardedTransport(GuardedBackend(policy), tls),
        timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS, pool=None),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        trust_env=False,
        follow_redirects=False,
    )


def open_upload_client(*, tls: ssl.SSLContext, timeout: float) -> httpx.AsyncClient:
    """A client for URLs of the operator's: no policy, and the environment's proxies are used."""
    return TracedClient(verify=tls, timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS))


async def read_rest(response: httpx.Response) -> None:
    """Take what is left of a short answer, so that its connection can serve again; no more depends on it."""
    with suppress(TimeoutError, *_NETWORK_ERRORS):
        async with asyncio.timeout(_READ_SECONDS):
            size = 0
            async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_raw())) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    if size > _READ:
                        break


async def close(response: httpx.Response) -> None:
    """Close an answer, and open the circle that it is in: its stream refers to it, and both to the request's body."""
    await response.aclose()
    del response.stream

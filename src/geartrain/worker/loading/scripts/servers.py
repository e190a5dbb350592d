"""Servers that a script starts at its import: none of them listens, since geartrain serves its model.

A socket that is to listen does nothing, and has the line of the script in the log. A loop that waits for its clients
finds it readable at once, and the `accept()` that follows ends the statement of the script that waits.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Final

from geartrain.worker.loading.loader import UncachedSource
from geartrain.worker.loading.scripts.finder import after_import
from geartrain.worker.loading.scripts.script import tell

_INTERNET: Final = (socket.AF_INET, socket.AF_INET6)
_ANNOTATIONS: Final = annotations.compiler_flag  # the one import from `__future__` that still has an effect


class _NotServed(SystemExit):
    """The end of a statement that waits for clients: loops and threads let it pass, as the end of a process."""


class _Import:
    """The import of a script, and the threads that it has left running."""

    is_running = False
    threads: ClassVar[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()

    @classmethod
    def is_here(cls) -> bool:
        """True in an import, and in a thread of one."""
        return cls.is_running or threading.current_thread() in cls.threads


@contextlib.contextmanager
def no_servers() -> Iterator[None]:
    """Have a script that is imported in a `with` block start no server.

    Its statements that would wait for clients end, and those after them run. A server of `socketserver`, such as one of
    `http.server`, has no address if it is made during the import. A model may start servers in its setup, but uvicorn.
    """
    after_import("grpc._server", partial(_silence_ports, name="_Server"))
    after_import("grpc.aio._server", partial(_silence_ports, name="Server"))
    after_import("gevent._socket3", lambda module: _silence_socket(module.socket))
    after_import("gevent.baseserver", _silence_gevent)
    after_import("hypercorn.run", _silence_processes)
    after_import("uvicorn", _silence_uvicorn)
    after_import("uvloop", _silence_loop)
    after_import("socketserver", _silence_sockets)
    _silence_socket(socket.socket)
    before = set(threading.enumerate())
    UncachedSource.exec_module = _run_on  # type: ignore[method-assign, assignment]
    _Import.is_running = True
    try:
        yield
    finally:
        del UncachedSource.exec_module
        _Import.threads.update(set(threading.enumerate()) - before)
        _Import.is_running = False


def _run_on(loader: UncachedSource, module: ModuleType) -> None:
    """Run a module of the author's; a statement at its top that waits for clients ends, and the next one follows."""
    try:
        super(UncachedSource, loader).exec_module(module)
    except _ENDS as error:
        _run_rest(module, error)


_ENDS: Final = (_NotServed, BaseExceptionGroup)
"""The end of a statement, and the group that trio and anyio make of it; such a group may have other errors, too."""


def _run_rest(module: ModuleType, stopped: BaseException) -> None:
    path = str(module.__file__)
    statements = ast.parse(Path(path).read_bytes(), path).body
    end: BaseException | None = stopped
    while end is not None:
        line, flags = _place(module, end)
        statements = [each for each in statements if each.lineno > line]
        code = compile(ast.Module(statements, []), path, "exec", flags=flags, dont_inherit=True)
        try:
            exec(code, vars(module))  # noqa: S102 - the author's own code
            end = None
        except _ENDS as error:
            end = error


def _place(module: ModuleType, error: BaseException) -> tuple[int, int]:
    """Return the line of a module's own code that ended, and the flag of its `from __future__ import annotations`.

    Raises `error` if it is another one.
    """
    if isinstance(error, BaseExceptionGroup) and error.split(_NotServed)[1] is not None:
        raise error
    step: TracebackType | None = error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals is vars(module) and step.tb_frame.f_code.co_name == "<module>":
            return step.tb_lineno, step.tb_frame.f_code.co_flags & _ANNOTATIONS
        step = step.tb_next
    raise error  # of a module without code of its own


def _tell(server: str) -> None:
    """Write that a server is not started, with the line of the author's code that starts it."""
    frame = inspect.currentframe()
    while frame is not None and not isinstance(frame.f_globals.get("__loader__"), UncachedSource):
        frame = frame.f_back
    where = "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: "
    tell(f"{where}{server} is not started: geartrain serves this model")


def _teller(server: str) -> Callable[..., None]:
    def told(*_: Any, **__: Any) -> None:
        _tell(server)

    return told


def _silence_ports(module: ModuleType, *, name: str) -> None:
    """Have a server of gRPC, whose sockets are its own, get no port, and the wait for its end be over."""
    kind: Any = getattr(module, name)
    adders = {each: getattr(kind, each) for each in ("add_insecure_port", "add_secure_port")}
    wait = kind.wait_for_termination
    if getattr(wait, "is_silenced", False):
        return

    def add(self: Any, *arguments: Any, own: Callable[..., int], **options: Any) -> int:
        if not _Import.is_here():
            return own(self, *arguments, **options)
        _tell("a server")
        return 0

    def waits(self: Any, *arguments: Any, **options: Any) -> Any:
        if _Import.is_here():
            raise _NotServed
        return wait(self, *arguments, **options)

    for each, own in adders.items():
        setattr(kind, each, partialmethod(add, own=own))
    waits.is_silenced = True  # type: ignore[attr-defined]
    kind.wait_for_termination = waits


def _silence_processes(hypercorn: Any) -> None:
    """Have Hypercorn start no processes, which would listen out of reach."""
    hypercorn.run = _teller("hypercorn")


def _silence_uvicorn(uvicorn: Any) -> None:
    """Have uvicorn start nothing, later either: its application would load the model a second time."""

    async def serve(*_: Any, **__: Any) -> None:
        _tell("uvicorn")

    uvicorn.run = uvicorn.Server.run = _teller("uvicorn")
    uvicorn.Server.serve = serve


def _silence_loop(uvloop: Any) -> None:
    """Have the loop of uvloop, whose sockets are its own, start no server."""
    kind = uvloop.Loop
    create = kind.create_server
    if getattr(create, "is_silenced", False):
        return

    async def create_server(loop: Any, *arguments: Any, **options: Any) -> Any:
        if not _Import.is_here():
            return await create(loop, *arguments, **options)
        _tell("a server")
        raise _NotServed

    create_server.is_silenced = True  # type: ignore[attr-defined]
    kind.create_server = create_server


def _silence_gevent(baseserver: ModuleType) -> None:
    """Have servers that are made in an import start nothing, later either: their loop may run in the setup."""
    kind = baseserver.BaseServer
    make = kind.__init__
    if getattr(make, "is_silenced", False):
        return

    def made(server: Any, *arguments: Any, **options: Any) -> None:
        make(server, *arguments, **options)
        if _Import.is_here():
            server.start = server.serve_forever = _teller(type(server).__name__)

    made.is_silenced = True  # type: ignore[attr-defined]
    kind.__init__ = made


def _silence_socket(kind: Any) -> None:
    """Have the sockets of a class not listen; they say that they do, which trio checks."""
    listen, accept, option = kind.listen, kind.accept, kind.getsockopt
    if getattr(listen, "is_silenced", False):
        return
    silent: weakref.WeakSet[Any] = weakref.WeakSet()

    def listens(self: socket.socket, *backlog: int) -> None:
        if self.family in _INTERNET and _Import.is_here():
            silent.add(self)
            _tell("a server")
        else:
            listen(self, *backlog)

    def option_of(self: socket.socket, *which: int) -> int | bytes:
        if self in silent and which == (socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return 1
        found: int | bytes = option(self, *which)
        return found

    def accepts(self: socket.socket) -> tuple[socket.socket, Any]:
        if self.family in _INTERNET and _Import.is_here():
            raise _NotServed
        found: tuple[socket.socket, Any] = accept(self)
        return found

    listens.is_silenced = True  # type: ignore[attr-defined]
    kind.listen, kind.accept, kind.getsockopt = listens, accepts, option_of


def _silence_sockets(socketserver: ModuleType) -> None:
    kind = socketserver.TCPServer
    if getattr(kind.server_bind, "is_silenced", False):
        return
    bind, activate = kind.server_bind, kind.server_activate

    def server_bind(server: Any) -> None:
        if not _Import.is_here():
            bind(server)
            return
        server.serve_forever = server.handle_request = _teller(type(server).__name__)
        server.shutdown = lambda: None  # it would wait for the end of `serve_forever`

    def server_activate(server: Any) -> None:
        if "serve_forever" not in vars(server):
            activate(server)

    server_bind.is_silenced = True  # type: ignore[attr-defined]
    kind.server_bind, kind.server_activate = server_bind, server_activate

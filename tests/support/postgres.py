"""A real Postgres of the tests' own: its data in a temporary folder, asked over a unix socket."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

_STARTS_WITHIN = "40"  # seconds
# Not safe when the machine loses power, and many times as fast.
_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "40",
    "shared_buffers": "16MB",
}


def find_postgres() -> Path | None:
    """Return the folder of the server's programs; Debian has them outside of PATH."""
    found = shutil.which("postgres")
    if found is not None and shutil.which("initdb") is not None:
        return Path(found).resolve().parent
    return next((path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)


class Postgres:
    """One server, which a test may stop and start again."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._data = str(folder / "data")
        self._user = _unprivileged()

    @property
    def pid(self) -> int:
        """The process that accepts connections."""
        return int((self._folder / "data/postmaster.pid").read_text().splitlines()[0])

    def make(self) -> None:
        """Make the data folder."""
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        arguments = ["--no-sync", "--auth=trust", "--username=geartrain", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", "-D", self._data, *arguments)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        log = str(self._folder / "log")
        options = f"-k {self._folder} {settings}"
        self._run("pg_ctl", "start", "-w", "-t", _STARTS_WITHIN, "-D", self._data, "-l", log, "-o", options)

    def stop(self) -> None:
        """End the server and its connections at once, without losing what is committed."""
        self._run("pg_ctl", "stop", "-w", "-t", _STARTS_WITHIN, "-m", "fast", "-D", self._data)

    def close(self) -> None:
        """End the server, if it runs."""
        if (self._folder / "data/postmaster.pid").exists():
            self.stop()

    def emptied(self) -> str:
        """Return the URL of the one database, with no rows left in it."""
        tables = self.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        names = [name for (name,) in tables if name != "geartrain_schema"]
        self.execute("SELECT 1", *(f"DELETE FROM {name}" for name in names))  # noqa: S608 - our own tables
        return self.url

    def dropped(self) -> str:
        """Return the URL of the one database, with no tables left in it."""
        self.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        return self.url

    def another(self, name: str) -> str:
        """Make another database, and return its URL."""
        self.execute(f"CREATE DATABASE {name}")
        return self._url_of(name)

    @property
    def url(self) -> str:
        """The URL of the one database."""
        return self._url_of("postgres")

    def _url_of(self, database: str) -> str:
        return f"postgres://geartrain@/{database}?host={self._folder}"

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return (self._folder / "log").read_text()

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, and return the rows that the last one gives."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements[:-1]:
                connection.execute(statement.encode())
            cursor = connection.execute(statements[-1].encode())
            return cursor.fetchall() if cursor.description is not None else []

    def _run(self, program: str, *arguments: str) -> str:
        # A file, for the server would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self._programs / program), *arguments],
                check=False,
                user=self._user,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            output.seek(0)
            text = output.read().decode().strip()
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {text}"
        return text


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a server; skip the test where there is none."""
    programs = find_postgres()
    if programs is None:
        pytest.skip("no Postgres server on this machine (Debian: apt install postgresql)")
    # The path of a unix socket is short.
    with tempfile.TemporaryDirectory(prefix="gtpg", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "pg"
        home.mkdir()
        server = Postgres(programs, home)
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.close()


def _unprivileged() -> str | None:
    """Return the user that the server runs as: it refuses to be root's."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None

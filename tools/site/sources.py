"""The pages of the repository as the site has them: links between them, and to other files, lead to pages of the site.

A link to a file that is no page, such as an example, leads to a page that shows the file; a link to a folder, to one
that shows the files in it. So the site needs no other server.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from os.path import relpath
from pathlib import Path
from typing import Final

FENCE: Final = re.compile(r"^ *(`{3,}|~{3,})")
_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
_ABROAD: Final = re.compile(r"[a-z][a-z0-9+.-]*:|#")
_LANGUAGES: Final = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".js": "js"}
_MADE: Final = {"__pycache__", "checkpoints", "weights"}  # by running the examples
_SHOWN: Final = 64 * 1024  # bytes of a file; a longer one is for download


class BrokenLinkError(Exception):
    """A link to a file that is not there."""


class Sources:
    """Writes pages into the folder from which the site is built."""

    def __init__(self, root: Path, target: Path, placed: Mapping[Path, str]) -> None:
        """`placed` are the pages of the repository, by file, and their names in the site."""
        self._root = root
        self._target = target
        self._placed = placed
        self._shown: set[Path] = set()

    def write_pages(self) -> None:
        """Write all pages, and those of the files that they link to."""
        for path, name in self._placed.items():
            (self._target / f"{name}.md").write_text(self._relinked(path, name), encoding="utf-8")

    def _relinked(self, path: Path, name: str) -> str:
        fenced, lines = "", []
        for line in path.read_text(encoding="utf-8").splitlines():
            fence = FENCE.match(line)
            if fence and not fenced:
                fenced = fence[1]
            elif fence and fence[1].startswith(fenced) and line.strip() == fence[1]:
                fenced = ""
            elif not fenced:
                line = _LINK.sub(lambda link: f"{link[1]}{self._target_of(link[2], path, name)}{link[3]}", line)  # noqa: PLW2901
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _target_of(self, link: str, path: Path, name: str) -> str:
        if _ABROAD.match(link):
            return link
        file, mark, anchor = link.partition("#")
        found = (path.parent / file).resolve()
        if not found.exists():
            raise BrokenLinkError(f"{path.relative_to(self._root)}: there is no {file}")
        if found in self._placed:
            return f"{self._placed[found]}.md{mark}{anchor}"
        if found.suffix in {".png", ".svg"}:
            return self._copied(found)
        return relpath(self._show(found), (self._target / name).parent)

    def _copied(self, file: Path) -> str:
        place = Path("files") / file.relative_to(self._root)
        (self._target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, self._target / place)
        return place.as_posix()

    def _show(self, found: Path) -> Path:
        """Write the page that shows a file, or the files of a folder, and return its path."""
        within = found.relative_to(self._root)
        page = self._target / "source" / within.parent / f"{within.name}.md"
        if found not in self._shown:
            self._shown.add(found)
            page.parent.mkdir(parents=True, exist_ok=True)
            files = sorted(_files_of(found)) if found.is_dir() else [found]
            shown = "".join(self._shown_file(file, found) for file in files)
            page.write_text(f"---\norphan: true\n---\n\n# {within.as_posix()}\n\n{shown}", encoding="utf-8")
        return page

    def _shown_file(self, file: Path, found: Path) -> str:
        head = f"## {file.relative_to(found).as_posix()}\n\n" if found.is_dir() else ""
        data = file.read_bytes()
        if len(data) > _SHOWN or b"\0" in data:
            return f"{head}It has {len(data)} bytes, and is not shown.\n\n"
        text = data.decode(errors="replace")
        return f"{head}````{_LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n````\n\n"


def _files_of(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and not _MADE & set(file.parts)]

"""Builds the site of the documentation: `python -m tools.site.build [FOLDER]`, build/site by default.

It is strict: a link that leads nowhere, a page that no section has and any other warning of Sphinx fail it.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from sphinx.cmd.build import build_main

from tools.site.contents import ELSEWHERE, HOME, SECTIONS, TITLES, Section
from tools.site.reference import MODULES, commands_page, module_page
from tools.site.sources import BrokenLinkError, Sources

ROOT: Final = Path(__file__).parents[2]


def write_sources(target: Path) -> None:
    """Write the pages that Sphinx reads into an empty folder. Raises `BrokenLinkError`."""
    placed = {ROOT / "docs" / page.name: page.stem for page in sorted((ROOT / "docs").glob("*.md"))}
    placed |= {ROOT / path: name for path, name in ELSEWHERE.items() if (ROOT / path).exists()}
    Sources(ROOT, target, placed).write_pages()
    (target / "commands.md").write_text(commands_page(), encoding="utf-8")
    (target / "license.md").write_text(f"# License\n\n```text\n{(ROOT / 'LICENSE').read_text()}```\n", encoding="utf-8")
    for page in MODULES:
        (target / f"{page}.rst").write_text(module_page(page), encoding="utf-8")
    for section in SECTIONS:
        (target / f"{section.name}.md").write_text(_section_page(section, target), encoding="utf-8")
    with (target / f"{HOME}.md").open("a", encoding="utf-8") as home:
        home.write(_tree([section.name for section in SECTIONS], "hidden:"))


def _section_page(section: Section, target: Path) -> str:
    text = f"# {section.title}\n\n{section.text}\n"
    for group in section.groups:
        there = [page for page in group.pages if any((target / f"{page}{end}").exists() for end in (".md", ".rst"))]
        caption = [f"caption: {group.title}"] if group.title else []
        text += _tree([TITLES.get(page, page) for page in there], *caption, "maxdepth: 1")
    return text


def _tree(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", *(f":{option}" for option in options), "", *pages, "```", ""])


def llms_text(pages: Path) -> str:
    """Return the site's list of contents for language models (llmstxt.org), from the sources of its pages."""
    lines = [f"# geartrain\n\n> {summary_of(pages / f'{HOME}.md')}\n"]
    for section in SECTIONS:
        lines.append(f"## {section.title}\n")
        for name in section.pages:
            if (page := pages / f"{name}.md").exists():
                title = page.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]
                lines.append(f"- [{title}]({name}.html): {summary_of(page)}")
        lines.append("")
    return "\n".join(lines)


def summary_of(page: Path) -> str:
    """Return the first sentence of a page's text, without links; empty where it begins with something else."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for part in text.split("\n\n"):
        if re.match(r"\s*[A-Za-z[`]", part):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(part.split()))
            return re.split(r"(?<=[.:]) (?=[A-Z])", text)[0].rstrip(":")
    return ""


def build(output: Path) -> int:
    """Build the site into a folder, which is emptied first. Returns the exit status."""
    shutil.rmtree(output, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="geartrain-site-") as folder:
        sources = Path(folder, "pages")
        sources.mkdir()
        try:
            write_sources(sources)
        except BrokenLinkError as error:
            print(error, file=sys.stderr)
            return 1
        settings = Path(__file__).parent
        words = ["-b", "html", "-W", "--keep-going", "-q", "-c", settings, "-d", Path(folder, "trees"), sources, output]
        status = build_main([str(word) for word in words])
        if status == 0:
            (output / "llms.txt").write_text(llms_text(sources), encoding="utf-8")
        return status


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"))

"""README is short, its links lead somewhere, and it names every extra. Its commands: `tests/server/test_package.py`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tools.try_wheel import MODULES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["authors"] == PROJECT["project"]["authors"]


def test_links_lead_to_files_of_the_repository() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 40
    assert [link for link in links if not urlsplit(link).scheme and not (ROOT / link).exists()] == []


def test_every_extra_is_named() -> None:
    table = README.partition("| Extra |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    assert named == set(PROJECT["project"]["optional-dependencies"]) - {"dev"}


def test_every_extra_is_tried_before_a_release() -> None:
    assert set(MODULES) == set(PROJECT["project"]["optional-dependencies"]) - {"dev"}


def test_what_a_package_index_shows_has_no_link_into_the_repository() -> None:
    """The substitutions of pyproject.toml; `tests/server/test_package.py` looks at what is built with them."""
    text = README
    for change in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert re.findall(r"\]\(([^)]+)\)", text) == ["https://github.com/replicate/cog"]
    assert "**Your models run as they are:** models written for Cog, model files\n" in text

"""`docs/recipes.md` shows the code of the recipes, `geartrain init` writes each of them, and the sdist has them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from geartrain.cli.init import Template

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^\| \[`(\w+)`\]", PAGE, re.MULTILINE)


def test_every_recipe_is_a_template_that_is_its_example() -> None:
    templates = ROOT / "src/geartrain/cli/templates"
    assert sorted(RECIPES) == sorted(path.name for path in templates.iterdir() if path.is_symlink())
    assert {*RECIPES} <= {*Template}
    assert [name for name in RECIPES if (templates / name).resolve() != ROOT / "examples" / name] == []


def test_sdist_has_every_recipe_where_the_wheel_takes_it_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["force-include"]
    assert included == {f"examples/{name}": f"src/geartrain/cli/templates/{name}" for name in RECIPES}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_a_test_and_its_packages(name: str) -> None:
    there = {path.name for path in (ROOT / "examples" / name).iterdir()}
    assert {"run.py", "cog.yaml", "README.md", "requirements.txt", f"test_{name}.py"} <= there


def test_served_are_all_of_them() -> None:
    served = (ROOT / "examples/test_served.py").read_text(encoding="utf-8")
    named = re.search(r"^RECIPES = \(([^)]*)\)", served, re.MULTILINE)
    assert named is not None
    assert re.findall(r'"(\w+)"', named[1]) == sorted(RECIPES)


def test_code_of_the_page_is_that_of_the_examples() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*/*.py")))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 2
    assert [block for block in blocks if block not in sources] == []

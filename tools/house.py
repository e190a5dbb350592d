"""Figures of the source: modules, lines, Protocols, null objects, and wording to avoid (CONTRIBUTING.md).

python -m tools.house                    # the figures of the work tree
python -m tools.house --words            # each sentence to reword, in the source and in the docs
python -m tools.house --words service    # those of one package
python -m tools.house --against HEAD~3   # ends with 1 if more than docstrings and comments changed since
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import pathlib
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src"
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_OPENING: Final = re.compile(
    r"(?:Return )?(?:what|who(?:m|se|ever)?|whether|where|how|why)\b|as (?!soon as|long as|few as|many as|far as)",
    re.IGNORECASE,
)
_ANYWHERE: Final = re.compile(
    r"\b(?:whoever|nobody|one that there is not|that there (?:is|are)(?: not)?|of which|believes?|heed(?:s|ed)?)\b",
    re.IGNORECASE,
)
_PROSE_OPENING: Final = re.compile(r"(?:What|Who(?:m|se|ever)?|Whether|How|Why)\b")
_CODE: Final = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_CODE_SPAN: Final = re.compile(r"`[^`\n]+(?:\n[^`\n]+)?`")
_MARKUP: Final = re.compile(r"^[\s>*_\[|]*(?:(?:[-*]|\d+\.) +)?[\s*_\[]*")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:])\*{0,2}\s+| \| ")
_NULL_OBJECT: Final = re.compile(r"_?No[A-Z]\w*|Nobody|Nothing|Silent\w*")


class Sentence(NamedTuple):
    """A docstring, a comment or a sentence of a page, and its place."""

    path: pathlib.Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


class Figures(NamedTuple):
    """Sizes of the source."""

    modules: int
    median: float
    code_lines: int
    protocols: int
    lone_protocols: Sequence[str]
    null_objects: Sequence[str]
    words: int


def modules(package: str = "") -> list[pathlib.Path]:
    """Find the modules of a package below `geartrain`; of all without one. Generated ones are left out."""
    found = sorted((SOURCE / "geartrain" / package).rglob("*.py"))
    return [path for path in found if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


class Parsed(NamedTuple):
    """The syntax tree and the tokens of a text, read once for all figures."""

    tree: ast.Module
    tokens: Sequence[tokenize.TokenInfo]


def parse(text: str) -> Parsed:
    """Parse the text of a module."""
    return Parsed(ast.parse(text), [*tokenize.generate_tokens(io.StringIO(text).readline)])


def sentences(path: pathlib.Path, module: Parsed) -> Iterator[Sentence]:
    """Read the docstrings, those of attributes too, and the comments of a module."""
    for node in ast.walk(module.tree):
        for statement in node.body if isinstance(node, _DOCUMENTED) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Sentence(path, statement.lineno, inspect.cleandoc(value.value))
    for token in module.tokens:
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "#!")):
            yield Sentence(path, token.start[0], token.string.lstrip("#: "))


def prose(path: pathlib.Path) -> Iterator[Sentence]:
    """Read the sentences of a page: of paragraphs, list items and cells, without headings and code."""
    text = _CODE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text(encoding="utf-8"))
    block, begin = "", 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        is_new = not line.strip() or line.startswith(("#", "|")) or re.match(r" *(?:[-*]|\d+\.) ", line)
        if is_new and block:
            yield from (Sentence(path, begin, each) for each in _split(block))
            block = ""
        if line.strip() and not line.startswith("#"):
            begin = begin if block else number
            block = f"{block} {line.strip()}" if block else line.strip()


def _split(block: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(_CODE_SPAN.sub("`code`", block)):
        yield _MARKUP.sub("", sentence)


def to_reword(package: str = "") -> list[Sentence]:
    """Find the sentences with wording that is ruled out; without a package, those of the docs too."""
    found = [each for path in modules(package) for each in _to_reword(path, parse(path.read_text(encoding="utf-8")))]
    return found if package else [*found, *_prose_to_reword()]


def _to_reword(path: pathlib.Path, module: Parsed) -> list[Sentence]:
    return [each for each in sentences(path, module) if is_to_reword(each.text)]


def _prose_to_reword() -> list[Sentence]:
    return [each for path in PAGES for each in prose(path) if is_prose_to_reword(each.text)]


def is_to_reword(text: str) -> bool:
    """Return True for a text with wording that is ruled out."""
    return bool(_OPENING.match(text) or _ANYWHERE.search(text))


def is_prose_to_reword(sentence: str) -> bool:
    """Return True for a sentence of a page with wording that is ruled out; a question may begin like one."""
    if _ANYWHERE.search(sentence):
        return True
    return bool(_PROSE_OPENING.match(sentence)) and not sentence.rstrip("*_ ").endswith("?")


def code_lines(module: Parsed) -> int:
    """Count the lines that are neither blank nor comment nor docstring."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in module.tokens:
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


class _Class(NamedTuple):
    package: pathlib.Path
    name: str
    bases: set[str]
    members: set[str]


def measure() -> Figures:
    """Measure the work tree."""
    paths = modules()
    sizes: list[int] = []
    classes: list[_Class] = []
    counted = words = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        module = parse(text)
        if path.name != "__init__.py":
            sizes.append(len(text.splitlines()))
        counted += code_lines(module)
        words += len(_to_reword(path, module))
        classes += [
            _Class(path.parent, node.name, _bases(node), _members(node))
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ClassDef)
        ]
    protocols = [each for each in classes if "Protocol" in each.bases]
    return Figures(
        len(paths),
        statistics.median(sizes),
        counted,
        len(protocols),
        [each.name for each in protocols if _is_lone(each, classes)],
        sorted({each.name for each in classes if _NULL_OBJECT.fullmatch(each.name)}),
        words + len(_prose_to_reword()),
    )


def _bases(node: ast.ClassDef) -> set[str]:
    """Return the names of the bases: `Protocol` is that of typing alone, and not `asyncio.Protocol`."""
    return {ast.unparse(base).partition("[")[0].removeprefix("typing.") for base in node.bases}


def _is_lone(protocol: _Class, classes: Sequence[_Class]) -> bool:
    """Find out if a single class has all members of a protocol, and lies in the protocol's own package."""
    having = [each for each in classes if "Protocol" not in each.bases and protocol.members <= each.members]
    return len(having) == 1 and having[0].package == protocol.package


def _members(node: ast.ClassDef) -> set[str]:
    members: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                members.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                members.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                members.add(name)
    return members - {"__init__"}


def bare(text: str) -> str:
    """Return the syntax tree of a module without its docstrings, as text."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def changed_since(commit: str) -> list[str]:
    """Name the modules whose code differs from that of a commit in more than docstrings and comments."""
    git = ["git", "-C", str(ROOT)]
    names = subprocess.run(
        [*git, "diff", "--name-only", commit, "--", "*.py"], check=True, capture_output=True, text=True
    )
    changed = []
    for name in names.stdout.split():
        before = subprocess.run([*git, "show", f"{commit}:{name}"], check=False, capture_output=True, text=True)
        path = ROOT / name
        if before.returncode or not path.exists() or bare(before.stdout) != bare(path.read_text(encoding="utf-8")):
            changed.append(name)
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", metavar="PACKAGE", nargs="?", const="", help="list the sentences to reword")
    parser.add_argument("--against", metavar="COMMIT", help="compare the code with that of a commit")
    asked = parser.parse_args(arguments)
    if asked.against:
        changed = changed_since(asked.against)
        print("\n".join(changed) or "Only docstrings and comments changed.")
        return 1 if changed else 0
    if asked.words is not None:
        print("\n".join(map(str, to_reword(asked.words))))
        return 0
    figures = measure()
    print(f"modules               {figures.modules}, median {figures.median:.0f} lines")
    print(f"code lines            {figures.code_lines}")
    print(
        f"Protocols             {figures.protocols}, with one class in the same package: {len(figures.lone_protocols)}"
    )
    print(f"null objects          {len(figures.null_objects)}")
    print(f"sentences to reword   {figures.words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

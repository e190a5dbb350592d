"""Which page is in which section of the site, in the order of its menu.

A page of `docs/` that no section has fails the strict build. A page that a section has and that is not there is left
out.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Section(NamedTuple):
    """A part of the site, with a page of its own that lists the others."""

    name: str
    title: str
    text: str
    pages: tuple[str, ...]


HOME: Final = "index"

SECTIONS: Final = (
    Section("learn", "Tutorial", "From nothing to a model of your own that others can ask.", ("tutorial",)),
    Section(
        "how-to",
        "How-to guides",
        "One page for each thing that you may want to do.",
        (
            "development",
            "testing",
            "playground",
            "client",
            "predictions",
            "files",
            "webhooks",
            "batching",
            "tensors",
            "training",
            "models",
            "backends",
            "models-repository",
            "remote",
            "store",
            "asgi",
            "deploy",
            "scale",
            "ray",
            "operations",
            "security",
            "logs",
            "metrics",
            "tracing",
            "bench",
            "migrate-cog",
            "migrate-triton",
            "migrate-mlserver",
            "migrate-litserve",
            "migrate-bentoml",
            "migrate-fastapi",
        ),
    ),
    Section(
        "reference",
        "Reference",
        "What there is, in full.",
        (
            "command-line",
            "commands",
            "api-geartrain",
            "api-metrics",
            "api-client",
            "api-testing",
            "api-asgi",
            "api-backends",
            "cog-compatibility",
            "open-inference",
            "triton-mlserver",
            "renamed",
        ),
    ),
    Section(
        "explanation",
        "Explanation",
        "How it works, and why it is as it is.",
        ("architecture", "comparison", "benchmarks"),
    ),
    Section(
        "project",
        "Project",
        "What has changed, and how to take part.",
        ("changelog", "contributing", "code-of-conduct", "security-policy", "license"),
    ),
)

ELSEWHERE: Final = {
    "README.md": HOME,
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "CODE_OF_CONDUCT.md": "code-of-conduct",
    "SECURITY.md": "security-policy",
    "benchmarks/README.md": "benchmarks",
}
"""Pages that are not in `docs/`, and their names in the site."""

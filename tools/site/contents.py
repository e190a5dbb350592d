"""Which page is in which section of the site, in the order of its menu.

A page of `docs/` that no section has fails the strict build. A page that a section has and that is not there is left
out.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Group(NamedTuple):
    """Pages of a section under a heading of their own."""

    title: str
    pages: tuple[str, ...]


class Section(NamedTuple):
    """A part of the site, with a page of its own that lists the others."""

    name: str
    title: str
    text: str
    groups: tuple[Group, ...]

    @property
    def pages(self) -> tuple[str, ...]:
        """All pages of the section."""
        return tuple(page for group in self.groups for page in group.pages)


HOME: Final = "index"
_GUIDES: Final = (
    "cog",
    "triton",
    "mlserver",
    "clouds",
    "kserve",
    "mlflow",
    "litserve",
    "torchserve",
    "truss",
    "bentoml",
    "fastapi",
)

SECTIONS: Final = (
    Section(
        "learn",
        "Begin",
        "From nothing to a model of your own that others can ask.",
        (Group("", ("start", "tutorial", "recipes")),),
    ),
    Section(
        "guides",
        "Guides",
        "One page for each thing that you may want to do.",
        (
            Group("Come from another server", tuple(f"migrate-{name}" for name in _GUIDES)),
            Group(
                "Write a model",
                ("development", "testing", "predictions", "files", "tensors", "batching", "training"),
            ),
            Group(
                "Serve it",
                (
                    "playground",
                    "client",
                    "data-sets",
                    "openai",
                    "openai-clients",
                    "anthropic",
                    "mcp",
                    "webhooks",
                    "models",
                    "models-repository",
                    "pipelines",
                    "caching",
                    "requests",
                    "remote",
                    "store",
                    "asgi",
                ),
            ),
            Group(
                "Operate it",
                ("deploy", "operations", "security", "scale", "ray", "logs", "metrics", "tracing", "bench", "tune"),
            ),
            Group("Extend it", ("backends",)),
        ),
    ),
    Section(
        "reference",
        "Reference",
        "What there is, in full.",
        (
            Group(
                "",
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
        ),
    ),
    Section(
        "explanation",
        "Explanation",
        "How it works, and why it is as it is.",
        (Group("", ("architecture", "life-of-a-request", "mechanisms", "comparison", "benchmarks")),),
    ),
    Section(
        "project",
        "Project",
        "What has changed, and how to take part.",
        (Group("", ("changelog", "contributing", "code-of-conduct", "security-policy", "license")),),
    ),
)

ELSEWHERE: Final = {
    "tools/site/home.md": HOME,
    "README.md": "start",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "CODE_OF_CONDUCT.md": "code-of-conduct",
    "SECURITY.md": "security-policy",
    "benchmarks/README.md": "benchmarks",
}
"""Pages that are not in `docs/`, and their names in the site."""

TITLES: Final = {"start": "First run <start>"}
"""Entries of the menu that are called otherwise than their page."""

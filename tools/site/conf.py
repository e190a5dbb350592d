"""Settings of Sphinx for the site; `tools/site/build.py` writes the pages that it reads."""

from __future__ import annotations

from geartrain import __version__

project = "geartrain"
copyright = "the authors of geartrain"  # noqa: A001 - Sphinx calls it so
version = release = __version__
html_title = f"geartrain {__version__}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
copybutton_prompt_text = "$ "  # of a session, the commands alone are copied
copybutton_line_continuation_character = "\\"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 6
suppress_warnings = ["myst.header"]  # a page may begin with a table of its own
keep_warnings = True
highlight_language = "text"
pygments_style = "default"

default_role = "code"  # docstrings are written as Markdown has it: `name`
autodoc_default_options = {"members": True, "inherited-members": False, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}  # light or dark as the system is; without it the theme warns in the console
html_theme_options = {
    "show_nav_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "search_bar_text": "Search",
}

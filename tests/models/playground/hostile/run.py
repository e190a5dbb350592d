"""Gives and prints what a page must only show."""

from typing import Any

from geartrain import BaseRunner, Input

HTML = '<img src=x onerror="document.title=1"><script>document.title=2</script><b>bold</b>'
GIVEN = {
    "html": HTML,
    "markdown": f"# Title\n\n{HTML}\n\n[a](javascript:document.title=3) ![b](http://192.0.2.1/b.png) **strong**",
    "line": "x" * 10_000_000,
    "escapes": "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback",
    "keys": {HTML: HTML, "__proto__": {"polluted": True}, "rows": [{HTML: HTML}, {HTML: 1}]},
    "svg": "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIG9ubG9hZD0iYWxlcnQoMSkiPjwvc3ZnPg==",
    "page": "data:text/html,%3Cscript%3Ealert(1)%3C/script%3E",
}


class Runner(BaseRunner):
    def run(self, what: str = Input(choices=list(GIVEN))) -> Any:
        print(HTML if what != "line" else GIVEN["line"])
        return GIVEN[what]

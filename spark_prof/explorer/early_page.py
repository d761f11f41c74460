"""The document around the first page, which is there before Streamlit's scripts have started.

It is Streamlit's own, with what the recording says first above it. A browser draws that as soon as
it has come, and runs Streamlit's scripts when the document has ended; once they have drawn the
same, what lay above goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path

from spark_prof.dashboards.formats import clean
from spark_prof.explorer.contents import PAGES

__all__ = ["EarlyPage", "early_page", "streamlit_files"]

_HEAD = """\
<meta charset="UTF-8">
<meta name="viewport" content="width=device-width, initial-scale=1, shrink-to-fit=no">
<title>spark-prof</title>
"""
_LARGEST_SCRIPT = "PlotlyChart.*.js"
"""What draws figures: a browser takes half a second to run it, while the server starts."""

_STYLE = """\
<style>
#early {
  --ink: #2f2d2b; --page: #fff; --side: #f8f8f7; --line: #e3e2e0;
  position: fixed; inset: 0; z-index: 1000000; display: flex; color: var(--ink);
  background: var(--page); font: 1rem/1.6 "Source Sans", sans-serif;
}
@media (prefers-color-scheme: dark) {
  #early { --ink: #edebe8; --page: #171614; --side: #21201d; --line: #3a3835; }
}
#early * { box-sizing: border-box; }
#early nav { flex: 0 0 300px; padding: 76px 30px; background: var(--side); overflow: hidden auto; }
#early nav p { font-size: 0.875rem; overflow-wrap: anywhere; }
#early nav a { display: block; padding: 0 8px; margin: 0 0 8px; line-height: 28px; }
#early nav a { color: inherit; text-decoration: none; }
#early nav a:first-of-type { font-weight: 600; }
#early main { flex: 1; padding: 96px 80px 160px; overflow: auto; }
#early h1 { font-size: 2.25rem; font-weight: 600; line-height: 1.2; padding: 16px 0; margin: 0; }
#early h2 { font-size: 1.75rem; font-weight: 600; line-height: 1.2; margin: 1.75rem 0 1rem; }
#early p { margin: 0 0 1rem; overflow-wrap: anywhere; }
@media (max-width: 768px) { #early nav { display: none; } #early main { padding: 96px 1rem; } }
"""
_CONTENT = """\
.verdict { font-size: 1.75rem; font-weight: 600; line-height: 1.2; margin: 0 0 1rem; }
.headline { display: flex; gap: 1rem; margin: 0 0 1rem; }
.headline div { flex: 1; display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.headline dt { font-size: 0.875rem; }
.headline dd { margin: 0; font-size: 2.25rem; }
.bars { margin: 0 0 1.5rem; }
.bars div { display: flex; align-items: center; height: 28px; font-size: 0.75rem; }
.bars .name { flex: 0 0 7.5rem; padding-right: 0.5rem; text-align: right; }
.bars .track { position: relative; flex: 1; height: 20px; }
.bars i { position: absolute; top: 0; bottom: 0; }
.bars .text { position: absolute; top: 2px; padding-left: 4px; white-space: nowrap; }
.finding { display: flex; gap: 1rem; align-items: center; }
.finding { padding: 1rem; margin: 0 0 1rem; border: 1px solid var(--line); border-radius: 8px; }
.finding b { flex: 0 0 8rem; font-size: 1.5rem; font-weight: 600; }
.finding p:last-child { margin: 0; }
"""
"""Of what `dashboards.first_page` draws."""

_GOES = """\
<script>
{
  const early = document.getElementById("early");
  const began = performance.now();
  const look = setInterval(() => {
    const app = document.querySelector("#root [data-testid=stApp]");
    const drawn = app && (app.querySelector(".js-plotly-plot .main-svg") ||
      (app.dataset.testScriptState === "notRunning" &&
        app.querySelector("[data-testid=stMain] [data-testid=stText]")));
    if (drawn || performance.now() - began > 30000) {
      clearInterval(look);
      early.remove();
    }
  }, 40);
}
</script>
"""


@dataclass(frozen=True)
class EarlyPage:
    """The document in two parts: what the recording says first comes between them."""

    before: str
    after: str


def early_page(source: str, static: Path | None = None) -> EarlyPage | None:
    """The document for the first page of a source; None where Streamlit's is not as expected.

    Streamlit's own page comes whole in the second part: until the recording was read, whoever reads
    it needs the processor more than a browser that makes its scripts ready.

    Args:
        source: its name.
        static: the folder of Streamlit's page and scripts, found without importing it if None.
    """
    try:
        static = static or streamlit_files()
        page = (static / "index.html").read_text(encoding="utf-8")
        head, body = (_between(page, name) for name in ("head", "body"))
        head = head.replace(f"<title>{_between(head, 'title')}</title>", "")
    except (OSError, ValueError):
        return None
    fetched, run = _largest_script(static)
    # The first page has no path of its own in Streamlit's navigation.
    links = "".join(
        f'<a href="./{page.path if place else ""}">{page.title}</a>\n'
        for place, page in enumerate(PAGES)
        if not page.of_results
    )
    return EarlyPage(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{_HEAD}</head>\n<body>\n'
        f'<style>\n{_STYLE}{_CONTENT}</style>\n<div id="early">\n'
        f"<nav><p>{escape(clean(source))}</p>\n{links}</nav>\n<main>\n",
        f"</main>\n</div>\n{body}{_GOES}{fetched}{head}{run}</body>\n</html>\n",
    )


def streamlit_files() -> Path:
    """The folder of Streamlit's page and scripts, found without importing it.

    Raises:
        OSError: there is none.
    """
    found = find_spec("streamlit")
    if found is None or found.origin is None:
        raise OSError("there is no Streamlit")
    return Path(found.origin).parent / "static"


def _between(page: str, name: str) -> str:
    """What an element of a page holds that has it once; raises ValueError."""
    _, rest = page.split(f"<{name}>")
    inside, _ = rest.split(f"</{name}>")
    return inside


def _largest_script(static: Path) -> tuple[str, str]:
    """What has a browser fetch the script, and what has it run."""
    for script in sorted((static / "static" / "js").glob(_LARGEST_SCRIPT)):
        path = f"./static/js/{script.name}"
        return (
            f'<link rel="modulepreload" crossorigin href="{path}">\n',
            f'<script type="module">import("{path}");</script>\n',
        )
    return "", ""

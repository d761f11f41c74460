"""A page as a browser reads it, and the tags that a page of ours is built of."""

from __future__ import annotations

from html.parser import HTMLParser

# What a section is built of; a tag that is not here came from a name.
OWN_TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "dl", "div", "dt",
    "dd", "section", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "code",
    "details", "summary", "script", "nav", "figure", "figcaption", "ol", "a", "pre",
}  # fmt: skip


class Page(HTMLParser):
    """Collects a page's tags, texts and scripts as a browser would see them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)

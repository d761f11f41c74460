"""A page as a browser reads it, what ours are built of, and how well a text stands out."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import numpy.typing as npt

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


def check_page(page: Page) -> None:
    """It is built of its own tags, loads nothing and runs nothing that a name brought."""
    assert {tag for tag, _ in page.tags} <= OWN_TAGS
    for tag, attributes in page.tags:
        assert not attributes.keys() & {"src", "srcset", "action"}, tag
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes), tag


Vector = npt.NDArray[np.float64]

_LUMINANCE = np.array([0.2126729, 0.7151522, 0.0721750])  # of linear RGB, IEC 61966-2-1


def _linear(colour: str) -> Vector:
    encoded = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2 of two colours such as #1c2024."""
    darker, lighter = sorted(float(_LUMINANCE @ _linear(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)

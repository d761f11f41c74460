"""Draws the whole explorer, as Streamlit does for a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from streamlit.testing.v1 import AppTest

from spark_prof.datasets.prepared import Prepared
from spark_prof.explorer.app import PAGES
from spark_prof.explorer.state import Sources
from tests.dashboards.page import Page

DATA = Path(__file__).parents[1] / "data"
PATHS = [*PAGES]
FOLDS = ("findings", "cells", "waterfall", "evidence", "roofline")
"""What is folded together, and here unfolded: see `widgets.folded`."""


def _script(names: list[str], ranks: list[int]) -> None:
    from spark_prof.explorer.app import main

    main(names, ranks)


def framed(
    names: Sequence[object], page: str = "", ranks: Sequence[int] = (), **address: object
) -> AppTest:
    """The page of these sources at an address; it may say what is wrong, but not fail."""
    kwargs = {"names": list(map(str, names)), "ranks": list(ranks)}
    app = AppTest.from_function(_script, kwargs=kwargs, default_timeout=120)
    if page:
        _go(app, page)
    _unfolded_at(app, address)
    app.run()
    assert not app.exception, app.exception[0]
    return app


def _unfolded_at(app: AppTest, address: Mapping[str, object]) -> None:
    for name, value in address.items():
        app.query_params[name] = str(value)
    for fold in FOLDS:
        app.session_state[f"fold-{fold}"] = True


def _one(page: str, given: object) -> None:
    import importlib

    importlib.import_module(f"spark_prof.explorer.pages.{page}_page").show(given)


def one_page(page: str, given: object, **address: object) -> AppTest:
    """A page alone, of what it is given; a CommandError is its exception."""
    app = AppTest.from_function(_one, kwargs={"page": page, "given": given}, default_timeout=60)
    _unfolded_at(app, address)
    return app.run()


def of_recording(page: str, shown: Prepared, *clients: Path, **address: object) -> AppTest:
    """A page alone, of one recording."""
    app = one_page(page, Sources(shown, lambda _: shown, ("one",), clients=clients), **address)
    assert not app.exception, app.exception
    return app


def _go(app: AppTest, page: str) -> None:
    """As a browser that asks for the page's address; AppTest only knows pages that are files."""
    from streamlit.util import calc_hash

    app._page_hash = calc_hash(page)


def texts(app: AppTest) -> str:
    """Every text on the page and beside it."""
    titles = [element.value for element in (*app.header, *app.subheader)]
    drawn = [unescaped(title) for title in titles] + [element.value for element in app.text]
    parts = [Page(element.proto.body).texts for element in app.get("html")]
    return "\n".join([*drawn, *(text for found in parts for text in found)])


def unescaped(title: str) -> str:
    """What a title shows, which Streamlit reads as Markdown; the opposite of `widgets.plain`."""
    return title.replace("\\", "").replace("\u2060", "")


def sidebar_links(app: AppTest) -> dict[str, str]:
    """The address's state of each link in the navigation, by its page's title."""
    found = [link.proto for link in app.sidebar.get("page_link")]
    return {proto.label: proto.query_string for proto in found}

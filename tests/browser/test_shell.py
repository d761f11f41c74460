"""The explorer around its pages: start, addresses, colours, widths, and no network."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.browser.conftest import PICTURES, Site
from tests.browser.navigation import go_to, pages
from tests.browser.served import EXPLORE
from tests.browser.view import View

Explore = Callable[..., View]

NONSENSE = (
    {"source": "0", "rank": "7", "step": "9" * 20, "layer": "1e9", "component": "a" * 3000,
     "kernel": "-1", "other": "-1"},
    {"source": "99999", "rank": "0x0", "step": "nan", "layer": "\0", "component": "<fuzzed>",
     "kernel": "nan", "other": "__proto__"},
)  # fmt: skip
"""What an address may say that no page ever wrote."""


def test_the_navigation_reaches_every_page(explore: Explore) -> None:
    view = explore()
    for place in range(len(pages(view))):
        go_to(view, place).check()
        assert view.state["source"] == "0", "the address forgets what is looked at"


def test_only_this_machine_is_let_in(site: Site) -> None:
    process = psutil.Process(site.served.process.pid)
    listening = {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_nonsense_in_the_address_is_no_error(explore: Explore) -> None:
    view = explore()
    for path in pages(view):
        for state in NONSENSE:
            view.open(path, **state)
            view.check()
            assert view.titles(), f"{path} {state} is empty"


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 1400), ("dark", 390)])
def test_every_page_in_both_themes_and_on_a_phone(
    site: Site, fresh: Callable[..., View], theme: str, width: int
) -> None:
    view = fresh(site.served.url, theme=theme, width=width).open(source=0)
    for path in pages(view):
        view.open(path, source=0).check()
        view.picture(PICTURES / f"{path or 'overview'}-{theme}-{width}.png", whole=True)
        wide, seen = view.page.evaluate(
            "() => [document.querySelector('[data-testid=stMain]').scrollWidth, innerWidth]"
        )
        assert wide <= seen, f"{path} is wider than the screen"


@pytest.mark.parametrize("arguments", [["/no/such/recording"], ["{}"]])
def test_what_cannot_be_shown_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    damaged = tmp_path / "empty"
    damaged.mkdir()
    (damaged / "meta.json").write_text(json.dumps({"schema": "x"}))
    named = [argument.format(damaged) for argument in arguments]
    done = subprocess.run([*EXPLORE, *named], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()

"""The explorer around its pages: start, addresses, colours, widths, and no network."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.browser.conftest import PICTURES, Site
from tests.browser.navigation import pages
from tests.browser.served import EXPLORE
from tests.browser.view import View


def test_only_this_machine_is_let_in(site: Site) -> None:
    process = psutil.Process(site.served.process.pid)
    listening = {c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_every_page_in_the_dark_on_a_phone(site: Site, fresh: Callable[..., View]) -> None:
    view = fresh(site.served.url, theme="dark", width=390).open(source=0)
    for path in pages(view):
        view.open(path, source=0).check()
        view.picture(PICTURES / f"{path or 'overview'}-dark-390.png", whole=True)
        wide, seen = view.page.evaluate(
            "() => [document.querySelector('[data-testid=stMain]').scrollWidth, innerWidth]"
        )
        assert wide <= seen, f"{path} is wider than the screen"


def test_what_cannot_be_shown_is_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "empty"
    damaged.mkdir()
    (damaged / "meta.json").write_text(json.dumps({"schema": "x"}))
    done = subprocess.run([*EXPLORE, str(damaged)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()

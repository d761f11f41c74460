"""A real Chromium that reaches nothing but this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserType, sync_playwright

NEEDED = "SPARK_PROF_NEEDS_BROWSER"
"""The environment variable that makes a missing browser a failure."""

_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


def found() -> str | None:
    """Where the browser is; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def needed() -> bool:
    """Whether tests without a browser fail instead of being skipped."""
    return os.environ.get(NEEDED) == "1"


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright, launched(playwright.chromium, path) as browser:
        yield browser


@contextmanager
def launched(kind: BrowserType, path: str, *names: str) -> Iterator[Browser]:
    """The same of a playwright that runs; some names lead to this machine, as an attacker's may."""
    rules = [f"MAP {name} 127.0.0.1" for name in names]
    rules += ["MAP * ~NOTFOUND", "EXCLUDE 127.0.0.1", "EXCLUDE localhost"]
    offline = f"--host-resolver-rules={', '.join(rules)}"
    browser = kind.launch(executable_path=path, args=[*_FLAGS, offline])
    try:
        yield browser
    finally:
        browser.close()

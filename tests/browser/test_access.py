"""What pages of others get from a running explorer, and that the ways of a person lead into it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.browser import chromium
from tests.browser.conftest import Site
from tests.browser.served import address
from tests.browser.view import View

_PATHS = ("", "layers", "_stcore/health", "_stcore/host-config", "favicon.png")

_ATTACK = """async ([host, paths]) => {
    const found = [];
    const read = (path, options) => fetch(`http://${host}/${path}`, options).then(
        async answer => found.push([path, answer.status, await answer.text()]),
        () => found.push([path, 0, ""]));
    for (const path of paths) {
        await read(path, {credentials: "include"});
        await read(path, {credentials: "include", method: "POST", body: "x"});
        await read(path, {credentials: "include", mode: "no-cors"});
    }
    found.push(["websocket", await new Promise(done => {
        const socket = new WebSocket(`ws://${host}/_stcore/stream`, ["streamlit"]);
        socket.onopen = () => done(200);
        socket.onerror = () => done(0);
    }), ""]);
    const loads = (kind, attribute, path) => new Promise(done => {
        const element = document.createElement(kind);
        element.onload = () => done(200);
        element.onerror = () => done(0);
        element[attribute] = `http://${host}/${path}`;
        document.documentElement.append(element);
    });
    found.push(["image", await loads("img", "src", "favicon.png"), ""]);
    return found;
}"""


@pytest.fixture(scope="module")
def rebound(browser: Browser) -> Iterator[Browser]:
    """A browser for which names of others lead to this machine."""
    path = chromium.found()
    assert path
    with chromium.launched(browser.browser_type, path, "evil.example", "*.evil.example") as running:
        yield running


@pytest.fixture
def visitor(rebound: Browser) -> Iterator[BrowserContext]:
    context = rebound.new_context()
    yield context
    context.close()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """The port of a server of somebody else on this machine, with a page that leads anywhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title><body>")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield str(server.server_address[1])
        server.shutdown()


def opened(page: Page, url: str, address: str, path: str = "") -> View:
    """A page after an address was opened in it."""
    view = View(page, url)
    view.go(address)
    assert view.path == path
    assert "token" not in view.state
    return view


def attack(page: Page, port: str) -> list[tuple[str, int, str]]:
    """What the page gets of an explorer under all of its names: path, status, text."""
    found = []
    for name in ("127.0.0.1", "localhost", "evil.example"):
        found += page.evaluate(_ATTACK, [f"{name}:{port}", list(_PATHS)])
    assert len(found) == 3 * (3 * len(_PATHS) + 2)
    return found


def test_a_page_of_another_origin_reads_nothing(
    site: Site, visitor: BrowserContext, elsewhere: str
) -> None:
    """Not even in a browser that has the cookie."""
    port = str(site.served.port)
    page = visitor.new_page()
    for name in ("127.0.0.1", "localhost"):
        page.goto(address(f"http://{name}:{port}"))
    assert {cookie["domain"] for cookie in visitor.cookies()} == {"127.0.0.1", "localhost"}
    page.route(f"http://evil.example:{port}/attack", lambda route: route.fulfill(body="<body>"))
    for origin in (
        f"http://evil.example:{port}/",  # after rebinding, on the explorer's own error page
        f"http://evil.example:{port}/attack",  # after rebinding, on a page of the attacker
        f"http://evil.example:{elsewhere}/",
        f"http://127.0.0.1:{elsewhere}/",  # the same site, as cookies have it
        f"http://localhost:{elsewhere}/",
    ):
        page.goto(origin)
        found = attack(page, port)
        # No answer could be read but that it is forbidden; an opaque one has no status.
        assert {status for _, status, _ in found} <= {0, 403}, (origin, found)
        assert all(len(text.splitlines()) <= 1 for _, _, text in found), origin


def test_the_same_is_read_by_its_own_page(site: Site, visitor: BrowserContext) -> None:
    page = visitor.new_page()
    host = f"127.0.0.1:{site.served.port}"
    page.goto(address(f"http://{host}"))
    found = page.evaluate(_ATTACK, [host, list(_PATHS)])
    statuses = {path: status for path, status, _ in reversed(found)}
    assert set(statuses.values()) == {200}, statuses


def test_no_other_page_shows_it_in_a_frame(
    site: Site, visitor: BrowserContext, elsewhere: str
) -> None:
    page = visitor.new_page()
    page.goto(address(site.served.url))
    for origin in (f"http://127.0.0.1:{elsewhere}/", f"http://evil.example:{elsewhere}/"):
        page.goto(origin)
        page.evaluate(
            """url => new Promise(done => {
                const frame = document.createElement("iframe");
                frame.onload = done;
                frame.src = url;
                document.body.append(frame);
            })""",
            site.served.url,
        )
        assert len(page.frames) == 2
        assert page.frames[1].locator("#root").count() == 0
    page.goto(f"{site.served.url}/layers")
    page.evaluate(
        """() => { const f = document.createElement("iframe"); f.src = "/"; f.name = "own";
        document.body.append(f); }"""
    )
    page.wait_for_function("() => document.querySelector('[name=own]').contentDocument.title")
    own = page.frame("own")
    assert own is not None
    own.locator("#root").wait_for(state="attached")


def test_every_way_of_a_person_leads_into_it(site: Site, visitor: BrowserContext) -> None:
    url = site.served.url
    _, _, token = address(url).partition("?")
    first = opened(visitor.new_page(), url, f"{url}/layers?{token}&source=1&layer=2", "layers")
    assert (first.state["source"], first.state["layer"]) == ("1", "2")
    first.act(first.page.reload)
    assert first.path == "layers"
    second = opened(visitor.new_page(), url, f"{url}/steps?source=1", "steps")
    for view in (first, second):
        view.check()


@pytest.mark.parametrize("known", [False, True])
def test_a_link_on_another_page_opens_it(
    site: Site, visitor: BrowserContext, elsewhere: str, known: bool
) -> None:
    """With a token for a browser that has no cookie, and without one for a browser that has."""
    url = site.served.url
    if known:
        visitor.request.get(address(url), max_redirects=0)
    page = visitor.new_page()
    view = View(page, url)
    page.goto(f"http://evil.example:{elsewhere}/")
    target = f"{url}/layers" if known else address(url).replace("/?", "/layers?")
    page.evaluate(
        """url => { const a = document.createElement("a"); a.href = url; a.textContent = "go";
        document.body.append(a); }""",
        target,
    )
    view.act(lambda: page.locator("a").click())
    assert (view.path, view.titles()[0]) == ("layers", "Layers")
    assert "token" not in page.evaluate("document.referrer")

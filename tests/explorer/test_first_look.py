"""A long recording's first page is drawn from some of its steps, and again when all are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_prof.datasets.prepared import Prepared, prepare
from spark_prof.errors import CommandError
from spark_prof.explorer import shelf, widgets
from spark_prof.explorer.shelf import SHELF, Shelf
from spark_prof.traces.some_steps import Share
from tests.explorer.framed import DATA, framed, texts

SOURCE = DATA / "h100-gpt-oss-20b-mxfp4-graphs"
LINE = "First look: 1 of 3 steps, spread over the recording."


class Slow:
    """A recording that is read when a test says so."""

    def __init__(self) -> None:
        self.read = threading.Event()
        self.fault = ""
        self.asked: list[tuple[str, int | None]] = []

    def prepare(
        self, source: str, rank: int | None, first_look: Callable[[Prepared], None]
    ) -> Prepared:
        """As `prepared.prepare`."""
        self.asked.append((source, rank))
        whole = prepare(source, rank)
        first_look(replace(whole, share=Share(1, 3, 600, 1944)))
        first_look(replace(whole, share=Share(2, 3, 600, 1944)))
        self.read.wait(60)
        if self.fault:
            raise CommandError(self.fault)
        return whole


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    found = Slow()
    monkeypatch.setattr(shelf, "prepare", found.prepare)
    monkeypatch.setattr(SHELF, "_readings", Shelf()._readings)
    yield found
    found.read.set()


def ended(slow: Slow) -> None:
    """All of it was read."""
    slow.read.set()
    SHELF.ask(str(SOURCE)).prepared.exception(60)


def test_the_overview_says_what_it_stands_on_until_all_is_read(slow: Slow) -> None:
    app = framed([SOURCE])
    assert LINE in texts(app)
    assert "What to do about it" in texts(app)
    app.run()
    ended(slow)
    app.run()
    assert not app.exception
    assert slow.asked == [(str(SOURCE), None)], "it is read once, whatever the rank is called"
    assert "First look" not in texts(app)
    assert "What to do about it" in texts(app)


def test_a_browser_gets_what_is_below_its_window_later_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(widgets.time, "sleep", pauses.append)
    monkeypatch.setattr(widgets, "FOLD_SECONDS", 7.0)
    app = framed([SOURCE])
    app.run()
    assert pauses.count(7.0) == 1
    pauses.clear()
    framed([SOURCE], "layers")
    assert 7.0 not in pauses


def test_other_pages_wait_for_all_of_it(slow: Slow) -> None:
    threading.Timer(1.0, slow.read.set).start()
    app = framed([SOURCE], "fallbacks")
    assert slow.read.is_set()
    assert "First look" not in texts(app)


def test_what_is_wrong_with_the_rest_is_said(slow: Slow) -> None:
    app = framed([SOURCE])
    assert LINE in texts(app)
    slow.fault = "the kernels are damaged"
    ended(slow)
    app.run()
    assert not app.exception
    assert "the kernels are damaged" in texts(app)
    assert "First look" not in texts(app)


def test_the_other_pages_are_ready_once_somebody_has_seen_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spark_prof.explorer import start
    from spark_prof.explorer.pages import layers

    seen: list[str] = []
    monkeypatch.setattr(start, "DRAWN", threading.Event())
    monkeypatch.setattr(layers, "PAGE", replace(layers.PAGE, warm=lambda p: seen.append(p.source)))
    waiting = threading.Thread(target=start.warm, args=(["/no/such", str(SOURCE)], ()))
    waiting.start()
    assert waiting.is_alive()
    start.DRAWN.set()
    waiting.join(60)
    assert seen == [str(SOURCE)]
    start.warm(["/no/such"], ())
    assert len(seen) == 1

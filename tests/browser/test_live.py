"""A page that stays open while its recording goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from spark_prof.traces.chunks import progress_name, write_json
from tests.browser.served import EXPLORE, Served
from tests.browser.view import View
from tests.support import Recorded, eager_decode

_MS = 60_000


@pytest.fixture
def recorder() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for a process that records."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def steps(view: View) -> int:
    """How many steps the open page has drawn."""
    return len({x for trace in view.traces("steps-in-order") for x in trace["x"] or []})


def test_it_grows_under_the_page(
    fresh: Callable[..., View], tmp_path: Path, recorder: subprocess.Popen[bytes]
) -> None:
    pieces = Recorded({0: [eager_decode()]}).write(tmp_path / "run")
    write_json(pieces, progress_name("rank0"), {"pid": recorder.pid, "recorded": 2})
    with Served([*EXPLORE, str(tmp_path / "run")], tmp_path) as served:
        view = fresh(served.url).open("steps")
        side = view.page.locator("[data-testid=stSidebar]")
        expect(side).to_contain_text("Being recorded", timeout=_MS)
        assert steps(view) == 2
        for piece in (1, 2):
            eager_decode(2 * piece, 2000 * piece).write(pieces, "rank0", piece)
            view.wait_until(lambda: steps(view) == 2 * piece + 2)  # noqa: B023
        recorder.kill()
        recorder.wait()
        expect(side).not_to_contain_text("Being recorded", timeout=_MS)
        view.settle()
        assert steps(view) == 6
        assert "still being recorded" not in view.open().text
        view.check()
        view.page.close()
        assert "Traceback" not in served.log

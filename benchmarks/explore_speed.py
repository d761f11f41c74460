"""How long the explorer takes in a real Chromium: until it answers clicks, and for each click.

Each bundle is opened as a person does, with `spark-prof explore` and a browser that has seen none
of it. It answers clicks once a bar of its waterfall can be clicked and its first finding is drawn.
In turn with it an empty Streamlit app is opened in the same way; a ratio is that of one round. A
picture is there when every run of the script has ended and all that it sent is drawn. Memory is
that of the server and everything that it starts, shared pages counted in each. Processor time is
that of server and browser until then, which others on the machine change little.

usage: python benchmarks/explore_speed.py [BUNDLE...] [--millions 1,10] [--rounds 5] [--no-clicks]

Without bundles it makes its own of so many million kernels: steps of a CUDA graph, as
`report_speed.py --kind graphs`. It fails where a bar is missed.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from playwright.sync_api import Browser, Locator

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report_speed import CAPTURES, DATA, make_bundle  # noqa: E402
from spark_prof.traces.bundle import Bundle, table_file  # noqa: E402
from tests.browser import chromium  # noqa: E402
from tests.browser.served import EXPLORE, Served, address, free_port  # noqa: E402
from tests.browser.view import LARGEST_MESSAGE, View, go_to, pages  # noqa: E402  # noqa: E402

BAR_START = ((2_000_000, 1.5), (20_000_000, 3.0))
"""Times the start of an empty app, by number of kernels."""

BAR_CLICK, BAR_MEMORY = 1.0, 3 << 29
_LONGEST_MS = 300_000
EMPTY = "import streamlit\n\nstreamlit.text('empty')\n"


@dataclass
class Found:
    """What was measured of one bundle.

    Attributes:
        kernels: that it has.
        empty: seconds from the command until an empty app is drawn, one a round.
        starts: until the explorer answers clicks.
        empty_busy: seconds of processor time that the former took.
        busy: that the latter took.
        clicks: seconds from each click to its picture.
        windows: seconds until Perfetto's UI shows the Timeline's window.
        largest: bytes of the largest message to the browser.
        memory: most bytes at one time.
    """

    kernels: int
    empty: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    empty_busy: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    clicks: dict[str, list[float]] = field(default_factory=dict)
    windows: list[float] = field(default_factory=list)
    largest: int = 0
    memory: int = 0

    @property
    def bar(self) -> float:
        """Times the start of an empty app."""
        return next(times for most, times in BAR_START if self.kernels < most)

    @property
    def ratios(self) -> list[float]:
        """Times the start of an empty app, of each round."""
        return [own / empty for own, empty in zip(self.starts, self.empty, strict=True)]

    @property
    def busy_ratios(self) -> list[float]:
        """Times the processor time of an empty app, of each round."""
        return [own / empty for own, empty in zip(self.busy, self.empty_busy, strict=True)]

    def missed(self) -> list[str]:
        """The bars that were missed."""
        ratio = statistics.median(self.ratios)
        found = [f"start: {ratio:.2f} x an empty app's"] if ratio > self.bar else []
        for name, taken in self.clicks.items():
            if statistics.median(taken) > BAR_CLICK:
                found.append(f"{name}: {statistics.median(taken):.2f} s")
        if self.largest > LARGEST_MESSAGE:
            found.append(f"a message of {self.largest:,} bytes")
        if self.memory > BAR_MEMORY:
            found.append(f"memory: {self.memory >> 20:,} MiB")
        return found


class Memory:
    """Looks at a process and its children until told to stop."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            total = 0
            try:
                for process in [self._process, *self._process.children(recursive=True)]:
                    total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self.most = max(self.most, total)

    def stop(self) -> int:
        """Bytes at most."""
        self._stop.set()
        self._thread.join()
        return self.most


class ProcessorTime:
    """What this process and all that it started have computed since then."""

    def __init__(self) -> None:
        self._before = self._now()

    def seconds(self) -> float:
        """By now; what has ended meanwhile does not count."""
        return sum(busy - self._before.get(pid, 0.0) for pid, busy in self._now().items())

    @staticmethod
    def _now() -> dict[int, float]:
        busy = {}
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                busy[process.pid] = times.user + times.system
        return busy


@dataclass(frozen=True)
class Click:
    """Something that a person does.

    Attributes:
        name: as the table calls it.
        path: the page on which it is done.
        do: does it, and waits for its picture.
        state: what the address says before.
    """

    name: str
    path: str
    do: Callable[[View], View]
    state: Mapping[str, object] = field(default_factory=dict)


def _bar(view: View) -> View:
    """Clicks the bar of what the experts take above their floor."""
    name = "time-of-a-token"
    for trace, drawn in enumerate(view.traces(name)):
        for place, data in enumerate(drawn["customdata"] or []):
            if drawn["type"] == "bar" and data[1] == "experts":
                return view.click_point(name, trace, place)
    raise AssertionError("no bar of the experts")


def _button(view: View, name: str) -> Locator:
    return view.keyed(name).locator("button")


def _row(name: str) -> Callable[[View], View]:
    return lambda view: view.click_row(view.keyed(name).locator("[data-testid=stDataFrame]"), 1)


CLICKS = (
    Click("overview: a bar", "", _bar),
    Click("overview: a finding", "", lambda view: view.click(_button(view, "show-0"))),
    Click("layers: a cell", "layers", lambda view: view.click_point("layers", 1, 20)),
    Click("layers: 99th percentile", "layers", lambda view: view.choose("show", "99th")),
    Click("layers: against those alike", "layers", lambda view: view.choose("show", "Difference")),
    Click("layers: kernel of a cell", "layers", _row("cell-kernels"),
          {"layer": 3, "component": "experts"}),
    Click("kernels: a row", "kernels", _row("kernels")),
    Click("kernels: a search", "kernels", lambda view: view.write("kernels-text", "matmul")),
    Click("kernels: a component", "kernels", lambda view: view.choose("component", "attention")),
    Click("timeline: slowest step", "timeline", lambda view: view.press("Slowest decode step")),
    Click("timeline: next step", "timeline", lambda view: view.press("Next step"), {"step": 9}),
    Click("timeline: other kernels", "timeline", lambda view: view.press("Kernels after these")),
    Click("steps: a step", "steps", lambda view: view.click_point("steps-in-order", 0, 5)),
    Click("compare: a part", "compare", lambda view: view.click_point("parts", 0, 7), {"other": 1}),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--millions", default="1,10", help="sizes, by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-clicks", action="store_true", help="the start only")
    options = parser.parse_args()
    path = chromium.found()
    if path is None:
        raise SystemExit("there is no chromium on the path; apt-get install chromium")
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    # As installed: without bytecode every start would compile 350 modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(ROOT / "spark_prof", quiet=1)
    print(f"spark-prof explore, {len(cores)} cores, browser included; {options.rounds} rounds")
    failed = False
    with tempfile.TemporaryDirectory() as name, chromium.chromium(path) as browser:
        folder = Path(name)
        for bundle in options.bundles or made(folder, options.millions):
            found = measure(browser, bundle, folder, options.rounds, clicks=not options.no_clicks)
            show(found)
            failed |= bool(found.missed())
    return int(failed)


def made(folder: Path, millions: str) -> Sequence[Path]:
    """Bundles of so many million kernels."""
    found = []
    for size in map(int, millions.split(",")):
        found.append(folder / f"{size}m-graphs")
        make_bundle(Bundle(DATA / CAPTURES["graphs"]), found[-1], "graphs", size * 10**6)
    return found


def new_view(browser: Browser) -> View:
    """An empty page in a browser that has been nowhere, for a server that is not there yet."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    view = View(context.new_page(), f"http://127.0.0.1:{free_port()}")
    view.glance_ms = 5
    return view


def measure(browser: Browser, bundle: Path, folder: Path, rounds: int, *, clicks: bool) -> Found:
    """Everything about one bundle; an empty app and the explorer in turn."""
    found = Found(Bundle(bundle).meta.tables[table_file("kernels", 0)])
    for number in range(rounds):
        seconds, busy = start_empty(browser, folder)
        found.empty.append(seconds)
        found.empty_busy.append(busy)
        start(browser, bundle, folder, found, rounds if clicks and number == 0 else 0)
    return found


def start_empty(browser: Browser, folder: Path) -> tuple[float, float]:
    """Seconds, and those of processor time, until the browser has drawn an empty app."""
    script = folder / "empty.py"
    script.write_text(EMPTY)
    flags = ["--server.headless=true", "--server.fileWatcherType=none",
             "--browser.gatherUsageStats=false", "--server.address=127.0.0.1"]  # fmt: skip
    command = [sys.executable, "-m", "streamlit", "run", str(script), *flags]
    view, busy = new_view(browser), ProcessorTime()
    with Served(command, folder, int(view.url.rpartition(":")[2]), "--server.port") as served:
        view.page.goto(view.url, wait_until="commit")
        view.page.locator("[data-testid=stText]").first.wait_for()
        seen = time.perf_counter() - served.began, busy.seconds()
    view.page.context.close()
    return seen


def start(browser: Browser, bundle: Path, folder: Path, found: Found, rounds: int) -> None:
    """Starts it once, and clicks everything as often as there are rounds."""
    view, busy = new_view(browser), ProcessorTime()
    command = [*EXPLORE, str(bundle), str(bundle)]
    with Served(command, folder, int(view.url.rpartition(":")[2])) as served:
        memory = Memory(served.process.pid)
        view.page.goto(address(view.url), wait_until="commit")
        view.plot("time-of-a-token").locator(".bars .point").first.wait_for(timeout=_LONGEST_MS)
        view.keyed("finding-0").wait_for(timeout=_LONGEST_MS)
        found.starts.append(time.perf_counter() - served.began)
        found.busy.append(busy.seconds())
        view.settle(runs=1)
        click_all(view, found, rounds)
        view.check()
        found.memory = max(found.memory, memory.stop())
        found.largest = max(found.largest, view.watch.largest)
    view.page.context.close()


def click_all(view: View, found: Found, rounds: int) -> None:
    """Goes to every page and clicks what there is, as often as there are rounds."""
    for number in range(rounds):
        for path in pages(view):
            name = f"to {path or 'overview'}" + (", the first time" if number == 0 else "")
            found.clicks.setdefault(name, []).append(go_to(view, path).took)
    for click in CLICKS:
        for _ in range(rounds):
            view.open(click.path, **click.state)
            found.clicks.setdefault(click.name, []).append(click.do(view).took)
    for _ in range(rounds):
        begin = time.perf_counter()
        view.open("timeline")
        view.page.frame_locator("iframe").get_by_text("components").first.wait_for(timeout=60_000)
        found.windows.append(time.perf_counter() - begin)


def show(found: Found) -> None:
    """Prints what was measured."""
    print(f"\n{found.kernels:,} kernels")
    for name, unit, taken in (
        ("an empty app is drawn", "s", found.empty),
        ("the explorer answers clicks", "s", found.starts),
        (f"times as long, bar {found.bar}", "x", found.ratios),
        ("the same of processor time", "x", found.busy_ratios),
        ("processor time of the explorer", "s", found.busy),
        ("Perfetto's UI shows the Timeline's window", "s", found.windows),
    ):
        if not taken:
            continue
        spread = f"{min(taken):.2f} to {max(taken):.2f}"
        print(f"{name:44} {statistics.median(taken):6.2f} {unit}  {spread}")
    for name, taken in found.clicks.items():
        worst = f"  worst {max(taken):.2f} s" if len(taken) > 1 else ""
        print(f"{name:44} {statistics.median(taken):6.2f} s  bar {BAR_CLICK:.0f} s{worst}")
    largest, bar = found.largest / 1e6, LARGEST_MESSAGE / 1e6
    print(f"{'largest message':44} {largest:6.2f} MB bar {bar:.0f} MB")
    print(
        f"{'memory of the server':44} {found.memory / 2**30:6.2f} GiB bar {BAR_MEMORY / 2**30} GiB"
    )
    for line in found.missed():
        print(f"missed: {line}")


if __name__ == "__main__":
    sys.exit(main())

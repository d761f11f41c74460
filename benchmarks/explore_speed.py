"""How long the explorer takes in a real Chromium: until it answers clicks, and for each click.

Of every page its opening and what a person clicks there are measured, beside a click on the button
of an empty app.

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
from functools import partial
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
EMPTY = """import streamlit

streamlit.text('empty')
if streamlit.query_params:
    streamlit.button('again')
"""
FIRST = ", the first time"


@dataclass(frozen=True)
class Answer:
    """What passes from a click to its picture.

    Attributes:
        seconds: by the clock.
        busy: seconds of processor time, of server and browser.
    """

    seconds: float
    busy: float


@dataclass
class Measurements:
    """What was measured of one bundle.

    Attributes:
        kernels: that it has.
        empty: seconds from the command until an empty app is drawn, one a round.
        starts: until the explorer answers clicks.
        empty_busy: seconds of processor time that the former took.
        busy: that the latter took.
        clicks: each answer, by what was clicked.
        empty_clicks: the answers of an empty app.
        windows: seconds until Perfetto's UI shows the Timeline's window.
        largest: bytes of the largest message to the browser.
        memory: most bytes at one time.
    """

    kernels: int
    empty: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    empty_busy: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    clicks: dict[str, list[Answer]] = field(default_factory=dict)
    empty_clicks: list[Answer] = field(default_factory=list)
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
        return [seconds / empty for seconds, empty in zip(self.starts, self.empty, strict=True)]

    @property
    def busy_ratios(self) -> list[float]:
        """Times the processor time of an empty app, of each round."""
        return [seconds / empty for seconds, empty in zip(self.busy, self.empty_busy, strict=True)]

    def missed(self) -> list[str]:
        """The bars that were missed."""
        ratio = statistics.median(self.ratios)
        missed_bars = [f"start: {ratio:.2f} x an empty app's"] if ratio > self.bar else []
        for name, answers in self.clicks.items():
            median = statistics.median(answer.seconds for answer in answers)
            if median > BAR_CLICK:
                missed_bars.append(f"{name}: {median:.2f} s")
        if self.largest > LARGEST_MESSAGE:
            missed_bars.append(f"a message of {self.largest:,} bytes")
        if self.memory > BAR_MEMORY:
            missed_bars.append(f"memory: {self.memory >> 20:,} MiB")
        return missed_bars


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
        process_now = psutil.Process()
        for process in [process_now, *process_now.children(recursive=True)]:
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


def _bar_of_conversions(view: View) -> View:
    return view.click_point("conversions", 0, 0)


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
    Click("conversions: a bar", "conversions", _bar_of_conversions),
    Click("steps: a step", "steps", lambda view: view.click_point("steps-in-order", 0, 5)),
    Click("compare: a part", "compare", lambda view: view.click_point("parts", 0, 7), {"other": 1}),
    Click("compare: a component", "compare", lambda view: view.choose("component", "attention"),
          {"other": 1}),
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
        for bundle in options.bundles or make_bundles(folder, options.millions):
            measurements = measure(
                browser, bundle, folder, options.rounds, clicks=not options.no_clicks
            )
            show(measurements)
            failed |= bool(measurements.missed())
    return int(failed)


def make_bundles(folder: Path, millions: str) -> Sequence[Path]:
    """Bundles of so many million kernels."""
    paths = []
    for size in map(int, millions.split(",")):
        paths.append(folder / f"{size}m-graphs")
        make_bundle(Bundle(DATA / CAPTURES["graphs"]), paths[-1], "graphs", size * 10**6)
    return paths


def new_view(browser: Browser) -> View:
    """An empty page in a browser that has been nowhere, for a server that is not there yet."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    view = View(context.new_page(), f"http://127.0.0.1:{free_port()}")
    view.glance_ms = 5
    return view


def measure(
    browser: Browser, bundle: Path, folder: Path, rounds: int, *, clicks: bool
) -> Measurements:
    """Everything about one bundle; an empty app and the explorer in turn."""
    measurements = Measurements(Bundle(bundle).meta.tables[table_file("kernels", 0)])
    for number in range(rounds):
        times = rounds if clicks and number == 0 else 0
        start_empty(browser, folder, measurements, times)
        start(browser, bundle, folder, measurements, times)
    return measurements


def start_empty(browser: Browser, folder: Path, measurements: Measurements, rounds: int) -> None:
    """Starts an empty app until the browser has drawn it, and clicks its button so often."""
    script = folder / "empty.py"
    script.write_text(EMPTY)
    flags = ["--server.headless=true", "--server.fileWatcherType=none",
             "--browser.gatherUsageStats=false", "--server.address=127.0.0.1"]  # fmt: skip
    command = [sys.executable, "-m", "streamlit", "run", str(script), *flags]
    view, busy = new_view(browser), ProcessorTime()
    with Served(command, folder, int(view.url.rpartition(":")[2]), "--server.port") as served:
        view.page.goto(view.url, wait_until="commit")
        view.page.locator("[data-testid=stText]").first.wait_for()
        measurements.empty.append(time.perf_counter() - served.began)
        measurements.empty_busy.append(busy.seconds())
        if rounds:
            view.open(button=1)
        for _ in range(rounds):
            measurements.empty_clicks.append(answered(partial(view.press, "again")))
    view.page.context.close()


def start(
    browser: Browser, bundle: Path, folder: Path, measurements: Measurements, rounds: int
) -> None:
    """Starts it once, and clicks everything as often as there are rounds."""
    view, busy = new_view(browser), ProcessorTime()
    command = [*EXPLORE, str(bundle), str(bundle)]
    with Served(command, folder, int(view.url.rpartition(":")[2])) as served:
        memory = Memory(served.process.pid)
        view.page.goto(address(view.url), wait_until="commit")
        view.plot("time-of-a-token").locator(".bars .point").first.wait_for(timeout=_LONGEST_MS)
        view.keyed("finding-0").wait_for(timeout=_LONGEST_MS)
        measurements.starts.append(time.perf_counter() - served.began)
        measurements.busy.append(busy.seconds())
        view.settle(runs=1)
        click_all(view, measurements, rounds)
        view.check()
        measurements.memory = max(measurements.memory, memory.stop())
        measurements.largest = max(measurements.largest, view.watch.largest)
    view.page.context.close()


def answered(click: Callable[[], View]) -> Answer:
    """Clicks, and waits for the picture."""
    busy = ProcessorTime()
    seconds = click().took
    return Answer(seconds, busy.seconds())


def click_all(view: View, measurements: Measurements, rounds: int) -> None:
    """Goes to every page and clicks what there is, as often as there are rounds."""
    for number in range(rounds):
        for path in pages(view):
            name = f"{path or 'overview'}: opened" + (FIRST if number == 0 else "")
            answer = answered(partial(go_to, view, path))
            measurements.clicks.setdefault(name, []).append(answer)
    for click in CLICKS:
        for _ in range(rounds):
            view.open(click.path, **click.state)
            answer = answered(partial(click.do, view))
            measurements.clicks.setdefault(click.name, []).append(answer)
    for _ in range(rounds):
        begin = time.perf_counter()
        view.open("timeline")
        view.page.frame_locator("iframe").get_by_text("components").first.wait_for(timeout=60_000)
        measurements.windows.append(time.perf_counter() - begin)


def show(measurements: Measurements) -> None:
    """Prints what was measured."""
    print(f"\n{measurements.kernels:,} kernels")
    for name, unit, samples in (
        ("an empty app is drawn", "s", measurements.empty),
        ("the explorer answers clicks", "s", measurements.starts),
        (f"times as long, bar {measurements.bar}", "x", measurements.ratios),
        ("the same of processor time", "x", measurements.busy_ratios),
        ("processor time of the explorer", "s", measurements.busy),
        ("Perfetto's UI shows the Timeline's window", "s", measurements.windows),
    ):
        if not samples:
            continue
        spread = f"{min(samples):.2f} to {max(samples):.2f}"
        print(f"{name:44} {statistics.median(samples):6.2f} {unit}  {spread}")
    show_clicks(measurements)
    largest, bar = measurements.largest / 1e6, LARGEST_MESSAGE / 1e6
    memory, memory_bar = measurements.memory / 2**30, BAR_MEMORY / 2**30
    print(f"{'largest message':44} {largest:6.2f} MB bar {bar:.0f} MB")
    print(f"{'memory of the server':44} {memory:6.2f} GiB bar {memory_bar} GiB")
    for line in measurements.missed():
        print(f"missed: {line}")


def show_clicks(measurements: Measurements) -> None:
    """Prints the openings and clicks of each page, beside the click of an empty app."""
    if not measurements.empty_clicks:
        return
    title = f"by page, bar {BAR_CLICK:.0f} s a click"
    print(f"{title:44} {'median':>7} {'worst':>7} {'processor':>10} {'x empty':>8}")
    least = statistics.median(answer.busy for answer in measurements.empty_clicks)
    # The openings of a page and what is clicked on it, one below the other.
    names = sorted(measurements.clicks, key=lambda name: name.partition(":")[0])
    for name, answers in [("a click in an empty app", measurements.empty_clicks)] + [
        (name, measurements.clicks[name]) for name in names
    ]:
        seconds = [answer.seconds for answer in answers]
        busy = statistics.median(answer.busy for answer in answers)
        times = f"{busy / least:7.1f}x" if least else ""
        print(
            f"{name:44} {statistics.median(seconds):6.2f}s {max(seconds):6.2f}s "
            f"{busy:9.2f}s {times:>8}"
        )


if __name__ == "__main__":
    sys.exit(main())

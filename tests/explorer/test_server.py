"""The running server: what it tells, whom it lets in, and how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import psutil
import pytest

from spark_prof.errors import CommandError
from spark_prof.explorer import server
from spark_prof.explorer.access import is_loopback
from spark_prof.explorer.server import address_in_url, first_page, listen
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
BUNDLE = DATA / "h100-gpt-oss-20b-mxfp4-graphs"
EXPLORE = (sys.executable, "-m", "spark_prof.cli.main", "explore")
_SECONDS = 120


@contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*EXPLORE, *map(str, words)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def url_of(process: subprocess.Popen[str]) -> str:
    """The address that it prints once there is something to see."""
    assert process.stderr
    for line in process.stderr:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError("it ended")


@each_row(
    ("names", "page"),
    [
        ((BUNDLE, DATA / "code-h100" / "dense-awq"), "compare"),
        ((BUNDLE,), ""),
        ((BUNDLE, DATA / "ab-h100"), ""),
        ((BUNDLE, BUNDLE.parent / "nowhere"), ""),
        ((BUNDLE, BUNDLE, BUNDLE), ""),
        ((DATA / "code-h100",), ""),
    ],
)
def test_two_recordings_open_beside_each_other(names: tuple[Path, ...], page: str) -> None:
    assert first_page(list(map(str, names))) == page


@pytest.mark.slow
def test_json_is_the_address() -> None:
    with running(BUNDLE, "--no-open", "--format", "json") as process:
        url = url_of(process)
        assert process.stdout
        lines = iter(process.stdout.readline, "}\n")
        assert json.loads("".join(lines) + "}") == {"schema": 1, "address": url}


def wait_for_handlers(process: subprocess.Popen[str]) -> None:
    """Returns once the command handles SIGTERM; before, Python is starting and ends in its way."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        if int(re.findall(r"SigCgt:\s*(\w+)", status)[0], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.01)
    raise AssertionError("it has not started")


@pytest.mark.slow
def test_it_serves_on_this_machine_only_and_ends_at_once_with_its_children() -> None:
    with running(BUNDLE, "--no-open") as process:
        url = url_of(process)
        own = psutil.Process(process.pid)
        listening = [c for c in own.net_connections() if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
        assert {c.laddr.port for c in listening} == {int(re.findall(r":(\d+)/", url)[0])}
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
        )
        with opener.open(url, timeout=_SECONDS) as answer:
            page = answer.read().decode()
            ahead = re.findall(r"<(/static/js/PlotlyChart[^>]+)>; rel=mod", answer.headers["link"])
        assert not re.search(r"""(src|href)=["']https?://""", page)
        with opener.open(urljoin(url, *ahead), timeout=_SECONDS) as answer:
            assert len(answer.read()) > 1e6, "what draws figures is asked for with the page"
        children = own.children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=_SECONDS)
        assert (process.returncode, out, err) == (0, "", "")
        _, alive = psutil.wait_procs(children, timeout=_SECONDS)
        assert not alive


def test_a_taken_port_is_a_line_or_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", None) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"port {port} of 127.0.0.1 is taken"):
            listen("127.0.0.1", port)
        monkeypatch.setattr(server, "DEFAULT_PORT", port)
        with listen("127.0.0.1", None) as found:
            assert found.getsockname()[1] > port
            connected = socket.create_connection(found.getsockname(), 5)
            connected.close()


@pytest.mark.slow
def test_two_explorers_that_ask_for_one_port_at_once() -> None:
    with listen("127.0.0.1", None) as free:
        port = free.getsockname()[1]
    words = (BUNDLE, "--no-open", "--port", port)
    with running(*words) as first, running(*words) as second:
        end = time.monotonic() + _SECONDS
        while (ended := [p for p in (first, second) if p.poll() is not None]) == []:
            assert time.monotonic() < end
            time.sleep(0.05)
        _, err = ended[0].communicate(timeout=_SECONDS)
        assert (ended[0].returncode, err.count("\n")) == (2, 1)
        assert f"port {port} of 127.0.0.1 is taken" in err
        assert f":{port}/" in url_of(second if ended[0] is first else first)


def test_a_host_that_is_not_here_is_a_line() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid", "x" * 300, "a b"):
        with pytest.raises(CommandError, match="cannot listen on"):
            listen(host, None)


def test_whom_a_host_lets_in_and_how_it_is_told() -> None:
    for host, own, told in (
        ("127.0.0.1", True, "127.0.0.1"), ("127.9.9.9", True, "127.9.9.9"), ("::1", True, "[::1]"),
        ("localhost", True, "localhost"), ("0.0.0.0", False, "127.0.0.1"), ("::", False, "[::1]"),
        ("192.168.1.2", False, "192.168.1.2"), ("localhost.evil.org", False, "localhost.evil.org"),
    ):  # fmt: skip
        assert (is_loopback(host), address_in_url(host)) == (own, told), host


@pytest.mark.slow
def test_a_host_for_others_is_said() -> None:
    with running(BUNDLE, "--host", "0.0.0.0", "--no-open") as process:
        assert process.stderr
        first = process.stderr.readline()
        assert re.search(r"anybody who reaches 0\.0\.0\.0:\d+ and has the token can read", first)
        assert url_of(process).startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_it_ends_while_it_starts() -> None:
    for delay in (0.0, 1.5):
        with running(BUNDLE, "--no-open") as process:
            wait_for_handlers(process)
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=_SECONDS)
            assert process.returncode in (0, 130)
            assert "Traceback" not in err

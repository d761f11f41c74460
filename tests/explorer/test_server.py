"""The running server: what it tells, whom it lets in, and how it ends."""

from __future__ import annotations

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

import psutil
import pytest

from spark_prof.errors import CommandError
from spark_prof.explorer.ports import address_in_url, find_port, is_loopback

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "tests" / "data" / "h100-gpt-oss-20b-mxfp4-graphs"
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


def test_it_serves_on_this_machine_only_and_ends_at_once_with_its_children() -> None:
    with running(BUNDLE, "--no-open") as process:
        url = url_of(process)
        own = psutil.Process(process.pid)
        listening = [c for c in own.net_connections() if c.status == psutil.CONN_LISTEN]
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
        assert {c.laddr.port for c in listening} == {int(url.rpartition(":")[2])}
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            page = answer.read().decode()
        assert not re.search(r"""(src|href)=["']https?://""", page)
        children = own.children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=_SECONDS)
        assert (process.returncode, out, err) == (0, "", "")
        _, alive = psutil.wait_procs(children, timeout=_SECONDS)
        assert not alive


def test_two_find_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"port {port} of 127.0.0.1 is taken"):
            find_port("127.0.0.1", port)
        monkeypatch.setattr("spark_prof.explorer.ports.DEFAULT_PORT", port)
        assert find_port("127.0.0.1", None) > port


def test_a_host_that_is_not_here_is_a_line() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid", "x" * 300, "a b"):
        with pytest.raises(CommandError, match="cannot listen on"):
            find_port(host, None)


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.168.1.2", False), ("localhost.evil.org", False)],
)  # fmt: skip
def test_whom_a_host_lets_in(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_the_address_that_is_told_can_be_opened() -> None:
    hosts = ("0.0.0.0", "::", "::1", "127.0.0.1", "box")
    assert [address_in_url(host) for host in hosts] == [
        "127.0.0.1", "[::1]", "[::1]", "127.0.0.1", "box",
    ]  # fmt: skip


def test_a_host_for_others_is_said() -> None:
    with running(BUNDLE, "--host", "0.0.0.0", "--no-open") as process:
        assert process.stderr
        first = process.stderr.readline()
        assert "anybody who reaches 0.0.0.0" in first
        assert url_of(process).startswith("http://127.0.0.1:")


def test_it_ends_while_it_starts() -> None:
    for delay in (0.5, 1.5, 3.0):
        with running(BUNDLE, "--no-open") as process:
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=_SECONDS)
            # Python itself may not be there yet.
            assert process.returncode in (0, 130, -signal.SIGINT)
            assert "Traceback" not in err

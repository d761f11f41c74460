"""A recorder of a running server dies: the server ends the recording, keeps it, takes the next."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_prof.traces.assemble import salvage
from spark_prof.traces.chunks import pieces_folder
from tests.dying import WAYS, Way, recorder, registry, small_disk

ROOT = Path(__file__).parents[2]
PIECE = 16


class Server:
    """A server made by hand, in a process of its own."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attachable", *options], cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def records_into(self) -> str:
        path = registry() / f"{self.process.pid}.json"
        return str(json.loads(path.read_text())["recording"])

    def end(self) -> tuple[int, int]:
        """How many steps it ran, and how many of its answers were right."""
        said, _ = self.process.communicate("")
        steps, right = map(int, said.split())
        return steps, right


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    started: list[Server] = []

    def starter(*options: str) -> Server:
        started.append(Server(*options))
        return started[-1]

    yield starter
    for server in started:
        server.process.kill()
        server.process.wait()


def wait(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def has_piece(folder: Path) -> bool:
    return any(pieces_folder(folder).glob("rank0.*.steps.npy"))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.what)
def test_the_server_ends_the_recording_and_takes_the_next(
    serve: Callable[..., Server], tmp_path: Path, way: Way
) -> None:
    server = serve()
    with small_disk(tmp_path / "disk", 160) as disk:
        if way.small_disk and disk is None:
            pytest.skip("this user may not mount a file system")
        folder = (disk if way.small_disk and disk else tmp_path) / "b"
        with recorder(server.port, folder, "none", PIECE) as found:
            asked = "asked 1 processes"
            wait(lambda: found.has_said(asked), asked)
            if not way.early:
                wait(lambda: has_piece(folder), "a piece")
                assert server.records_into() == str(folder)
            way.do(found)
            if way.early:
                time.sleep(1)
            wait(lambda: not server.records_into(), "the end of the recording")
            code = found.process.wait(60)
            said = found.output.read_text()
        if way.small_disk:
            assert code == 2, said
            assert "MiB are free" in said or "No space left" in said
            (folder.parent / "others").unlink()
        if way.lost:
            assert code == 2, said
            assert "was removed or moved while it was recorded into" in said
        elif not way.early:
            result = salvage(folder)
            steps = result.bundle.frame("steps", 0)["step"].tolist()
            assert len(steps) >= PIECE
            assert steps == list(range(len(steps)))
            assert way.small_disk or not result.missing
            if way.what == "SIGKILL":
                told = f"rank0: its recording ended after {len(steps)} steps: its recorder ended"
                assert any(line.startswith(told) for line in result.ranks[0].missing)
            assert result.bundle.meta.state in ("complete", "interrupted", "salvaged")
    next_one = tmp_path / "next"
    with recorder(server.port, next_one, "none", PIECE) as found:
        wait(lambda: has_piece(next_one), f"a piece of the next: {found.output.read_text()}")
    steps_run, right = server.end()
    assert steps_run == right > PIECE


@pytest.mark.slow
def test_a_recorder_that_is_stopped_for_a_moment_goes_on(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve()
    folder = tmp_path / "b"
    with recorder(server.port, folder, "none", PIECE) as found:
        wait(lambda: has_piece(folder), "a piece")
        found.send(signal.SIGSTOP)
        time.sleep(3)
        assert server.records_into() == str(folder)
        found.send(signal.SIGCONT)
        found.send(signal.SIGTERM)
        assert found.process.wait(60) == 0, found.output.read_text()
    assert salvage(folder).bundle.meta.state == "complete"


@pytest.mark.slow
def test_a_quota_is_told_with_its_reason_and_the_server_is_free(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Free space says nothing there: only what cannot be written does."""
    server = serve("--limit", "4000")
    for number in range(2):
        with recorder(server.port, tmp_path / f"b{number}", "none", 256) as found:
            assert found.process.wait(60) == 2
            said = found.output.read_text()
        assert "failed" in said
        assert "File too large" in said
        wait(lambda: not server.records_into(), "the end of the recording")
    steps, right = server.end()
    assert steps == right

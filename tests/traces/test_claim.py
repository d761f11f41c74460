"""One writer a folder: whoever comes second is refused at once, and nothing of a lock is left."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.profiler.launcher import prepare_bundle, remove_empty
from spark_prof.profiler.settings import Settings
from spark_prof.traces.assemble import assemble, salvage
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import pieces_folder
from spark_prof.traces.claim import Claim, is_claimed, staged
from tests.support import eager_decode

WON, REFUSED = 0, 2


def write_bundle(folder: Path, kind: str, run: str) -> int:
    """Writes a bundle as record or import do; returns how it went."""
    try:
        if kind == "staged":
            with staged(folder) as staging:
                (staging / "whole").write_text(run)
                time.sleep(0.05)
            return WON
        with prepare_bundle(folder, ["vllm"], Settings(str(folder), run=run)) as claim:
            for number in range(3):
                eager_decode(2 * number, 2000 * number).write(
                    pieces_folder(folder), "rank0", number
                )
            assemble(folder, state="complete")
            remove_empty(folder, claim)
        return WON
    except CommandError as error:
        return REFUSED if "\n" not in str(error) else 3


def at_once(folder: Path, kinds: tuple[str, ...]) -> list[int]:
    """Starts a writer of each kind at the same instant."""
    begin, release = os.pipe()
    children = []
    for kind in kinds:
        child = os.fork()
        if child == 0:
            code = 4
            try:
                os.close(release)
                os.read(begin, 1)
                code = write_bundle(folder, kind, f"{os.getpid():016x}")
            finally:
                os._exit(code)
        children.append(child)
    os.close(release)  # all of them read the end of the file now
    os.close(begin)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("record",) * 2, ("staged",) * 2, ("record", "staged")])
def test_of_two_at_once_one_wins(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    for number in range(4):
        folder = tmp_path / str(number)
        if number % 2:
            folder.mkdir()
        codes = at_once(folder, kinds)
        assert sorted(codes) == [WON, REFUSED], number
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
        if kinds[codes.index(WON)] == "staged":
            assert [path.name for path in folder.iterdir()] == ["whole"]
        else:
            bundle = Bundle(folder)
            assert bundle.meta.state == "complete"
            assert len(bundle.frame("steps", 0)) == 6
            assert not pieces_folder(folder).exists()
        shutil.rmtree(folder)


def test_a_killed_writer_keeps_nobody_out(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    child = os.fork()
    if child == 0:
        try:
            claim = prepare_bundle(folder, ["vllm"], Settings(str(folder)))
            eager_decode().write(pieces_folder(folder), "rank0", 0)
            signal.pause()
            claim.release()
        finally:
            os._exit(1)
    end = time.monotonic() + 60
    while not (pieces_folder(folder) / "rank0.00000.steps.npy").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert is_claimed(folder)
    with pytest.raises(CommandError, match="another spark-prof writes into"):
        Claim(folder)
    with pytest.raises(CommandError, match="still being recorded"):
        salvage(folder)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(CommandError, match="exists already"):
        Claim(folder)
    assert salvage(folder).ranks[0].steps == 2


def test_a_folder_that_was_replaced_is_not_removed(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    first = prepare_bundle(folder, ["vllm"], Settings(str(folder), run="a"))
    shutil.rmtree(folder)
    assert not first.intact()
    second = prepare_bundle(folder, ["vllm"], Settings(str(folder), run="b"))
    remove_empty(folder, first)
    first.release()
    assert second.intact()
    assert pieces_folder(folder).is_dir()


@pytest.mark.parametrize("fails", [True, False])
def test_nothing_is_left_of_a_claim(tmp_path: Path, fails: bool) -> None:
    folder = tmp_path / "deep" / "b"
    with Claim(folder):
        if not fails:
            (folder / "mine").touch()
    assert folder.exists() == (not fails)
    assert not is_claimed(folder)

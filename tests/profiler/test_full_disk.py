"""A disk that fills up while a recording goes on, and while its bundle is made.

Where nothing may be mounted, a limit on the size of files takes the disk's place.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.assemble import salvage
from spark_prof.traces.chunks import pieces_folder
from tests.flushed import flushed_in, lacking
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1 << 20


def record(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """Records a worker made by hand in a process of its own."""
    argv = [sys.executable, "-m", "tests.recorder", folder, *options]
    return subprocess.run(list(map(str, argv)), cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={MEBIBYTE}", "spark-prof-test", str(folder)]
    if not shutil.which("mount") or subprocess.run(argv, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def check_nothing_is_half_written(folder: Path) -> None:
    assert [path.name for path in pieces_folder(folder).iterdir() if path.name[0] == "."] == []


@pytest.mark.slow
@each_row(("limit", "logged"), [(0, False), (250, True)])
@each_row("backend", ["none", "torch"])
def test_a_piece_that_cannot_be_written_ends_the_recording_only(
    tmp_path: Path, backend: str, limit: int, logged: bool
) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    folder = tmp_path / "b"
    options = ("--backend", backend, "--piece", 4, "--limit", limit, "--limit-after", 9)
    done = record(folder, "--steps", 60, *options)
    assert (done.returncode, done.stdout) == (0, "60\n"), done.stderr[-3000:]
    assert "hook flush failed and is off" in done.stderr
    check_nothing_is_half_written(folder)
    found = flushed_in(pieces_folder(folder))
    # Torch's pieces are shorter where this machine is slow.
    assert found.count()[0] == 8 if backend == "none" else 0 < found.count()[0] <= 9
    result = salvage(folder)
    assert lacking(found, result.bundle) == []
    assert any("File too large" in line for line in result.bundle.meta.lost) == logged


@pytest.mark.slow
def test_a_full_disk_while_recording_and_while_salvaging(small_disk: Path, tmp_path: Path) -> None:
    folder = small_disk / "b"
    done = record(folder, "--steps", 1500, "--piece", 4)
    assert (done.returncode, done.stdout) == (0, "1500\n"), done.stderr[-3000:]
    assert "No space left on device" in done.stderr
    check_nothing_is_half_written(folder)
    found = flushed_in(pieces_folder(folder))
    assert 100 < found.count()[0] < 1500
    names = sorted(path.name for path in pieces_folder(folder).iterdir())
    (small_disk / "others").write_bytes(bytes(shutil.disk_usage(small_disk).free))

    with pytest.raises(CommandError, match=r"No space left on device.*pieces are kept") as caught:
        salvage(folder)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in pieces_folder(folder).iterdir()) == names
    assert [path.name for path in folder.iterdir()] == ["pieces"]

    copy = shutil.copytree(folder, tmp_path / "copy")
    assert lacking(found, salvage(copy).bundle) == []
    (small_disk / "others").unlink()
    subprocess.run(["mount", "-o", f"remount,size={4 * MEBIBYTE}", str(small_disk)], check=True)
    assert lacking(found, salvage(folder).bundle) == []


@pytest.mark.slow
@each_row("limit", [1, 100, 1500, 3000])
def test_tables_that_cannot_be_written_leave_the_pieces(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "b"
    record(folder, "--steps", 40, "--piece", 4)
    found = flushed_in(pieces_folder(folder))
    code = (
        "import resource, sys; from spark_prof.cli.main import main; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        f"sys.argv = ['spark-prof', 'salvage', {str(folder)!r}]; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path.name for path in folder.iterdir()] == ["pieces"]
    assert lacking(found, salvage(folder).bundle) == []

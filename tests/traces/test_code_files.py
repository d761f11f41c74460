"""Machine code on disk: cubins, folders of them, libraries with several architectures."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.code_files import code_files, library_code
from spark_prof.traces.cuda_tools import find_tool
from tests.rows import each_row

from .cubins import library

pytestmark = pytest.mark.timeout(120)
needs_tool = pytest.mark.skipif(find_tool("cuobjdump") is None, reason="cuobjdump is not installed")


def symbols(path: Path, architecture: str | None = None) -> dict[str, set[str]]:
    """The functions that count, by the architecture in the name of their file."""
    with code_files(path, architecture) as found:
        files = {p.suffixes[-2].lstrip("."): names or set() for p, names in found.cubins.items()}
        return {name: names for name, names in files.items() if names} | (
            {"ptx": set(found.compiled_by_driver)} if found.compiled_by_driver else {}
        )


@each_row(
    ("architecture", "loaded"),
    [
        ("sm_80", {"sm_80"}), ("8.0", {"sm_80"}), ("sm_86", {"sm_80"}), ("89", {"sm_80"}),
        ("sm_90", {"sm_90a", "ptx"}), ("sm_90a", {"sm_90a", "ptx"}), ("9.0", {"sm_90a", "ptx"}),
        ("sm_100", {"ptx"}), ("sm_120", {"sm_120", "ptx"}), ("sm_121", {"sm_120", "ptx"}),
        ("12.1", {"sm_120", "ptx"}), ("compute_121", {"sm_120", "ptx"}), (None, {"sm_120", "ptx"}),
    ],
)  # fmt: skip
def test_what_a_gpu_loads_of_a_library(
    tmp_path: Path, architecture: str | None, loaded: set[str]
) -> None:
    found = symbols(library(tmp_path), architecture)
    assert set(found) == loaded | {"ptx"}
    assert "only_ptx" in found["ptx"]
    assert ("mma_bf16" in found["ptx"]) == (loaded == {"ptx"})


@each_row(
    ("architecture", "words"),
    [("sm_75", "holds nothing for sm_75, only sm_80"), ("Blackwell", "is no architecture"),
     ("", "is no architecture"), ("sm_1", "is no architecture")],
)  # fmt: skip
def test_an_architecture_that_is_not_there(tmp_path: Path, architecture: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        symbols(library(tmp_path), architecture)


def test_other_files_are_refused(tmp_path: Path) -> None:
    whole = library(tmp_path).read_bytes()
    for content in (whole[:5000], b"\x7fELF" + bytes(100), b"\x7fELF"):
        path = tmp_path / "cut.so"
        path.write_bytes(content)
        with pytest.raises(CommandError, match=r"cut\.so") as caught:
            symbols(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(CommandError, match="cannot read"):
        symbols(tmp_path / "nosuch")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = library(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    symbols(path)
    with pytest.raises(CommandError):
        symbols(path, "sm_75")
    assert list(place.iterdir()) == []


@needs_tool
@each_row(("generation", "newest"), [(12, "sm_120f"), (10, "sm_120"), (0, "sm_120")])
def test_a_family_build_is_told_where_it_is_asked_for(
    tmp_path: Path, generation: int, newest: str
) -> None:
    cubins, ptx = library_code(library(tmp_path), generation, 60)
    assert cubins == [(newest, 1), ("sm_80", 1), ("sm_90a", 1)]
    assert ptx == ["sm_80"]

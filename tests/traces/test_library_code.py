"""Architectures of a shared library, with family builds told from plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.errors import CommandError
from spark_prof.traces.code_files import library_code
from spark_prof.traces.cuda_tools import find_tool
from tests.traces.cubins import library

needs_tool = pytest.mark.skipif(find_tool("cuobjdump") is None, reason="cuobjdump is not installed")


@needs_tool
@pytest.mark.parametrize(("generation", "newest"), [(12, "sm_120f"), (10, "sm_120"), (0, "sm_120")])
def test_a_family_build_is_told_where_it_is_asked_for(
    tmp_path: Path, generation: int, newest: str
) -> None:
    code = library_code(library(tmp_path), generation, 60)
    assert code.cubins == ((newest, 1), ("sm_80", 1), ("sm_90a", 1))
    assert code.ptx == ("sm_80",)


@needs_tool
@pytest.mark.parametrize("data", [b"", b"text"])
def test_what_is_no_library_is_a_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(data)
    with pytest.raises(CommandError) as caught:
        library_code(path, 12, 60)
    assert "\n" not in str(caught.value)


@needs_tool
def test_a_library_without_gpu_code_has_none(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(b"\x7fELF" + bytes(60))
    assert library_code(path, 12, 60).cubins == ()


@needs_tool
def test_no_time_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="stopped"):
        library_code(library(tmp_path), 12, 0)


def test_without_cuobjdump_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_prof.traces.code_files.find_tool", lambda _: None)
    with pytest.raises(CommandError, match="pip install"):
        library_code(tmp_path / "x.so", 12, 60)

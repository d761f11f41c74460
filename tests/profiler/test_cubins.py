"""Machine code in the caches of JIT compilers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_prof.profiler.backends.cupti import code_caches, copy_cached
from tests.rows import each_row
from tests.support import files_of_at_most


@each_row(
    ("environment", "expected"),
    [
        ({"HOME": "/home/u", "USER": "u"},
         {"triton": "/home/u/.triton/cache", "inductor": "/tmp/torchinductor_u",
          "vllm": "/home/u/.cache/vllm", "flashinfer": "/home/u/.cache/flashinfer"}),
        ({"HOME": "/home/u", "TRITON_CACHE_DIR": "/t", "TORCHINDUCTOR_CACHE_DIR": "/i",
          "VLLM_CACHE_ROOT": "/v", "FLASHINFER_WORKSPACE_BASE": "/f"},
         {"triton": "/t", "inductor": "/i", "vllm": "/v", "flashinfer": "/f/.cache/flashinfer"}),
        ({"HOME": "/home/u", "XDG_CACHE_HOME": "/x"}, {"vllm": "/x/vllm"}),
        ({"HOME": "/home/u", "XDG_CACHE_HOME": ""}, {"vllm": "/home/u/.cache/vllm"}),
        ({}, {"triton": "/.triton/cache"}),
    ],
)  # fmt: skip
def test_where_the_caches_are(
    environment: Mapping[str, str], expected: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    found = code_caches(environment)
    assert {name: str(found[name]) for name in expected} == expected
    assert set(found) == {"triton", "inductor", "vllm", "flashinfer"}


def _cache(folder: Path, **files: str) -> Path:
    for number, (name, content) in enumerate(files.items()):
        path = folder / f"key{number}" / name.replace("__", ".")
        path.parent.mkdir(parents=True)
        path.write_text(content)
    return folder


def test_only_cubins_named_after_the_functions_are_copied(tmp_path: Path) -> None:
    triton = _cache(tmp_path / "t", one__cubin="1", one__ptx="text", two__cubin="2", one="x")
    inductor = _cache(tmp_path / "i", one__cubin="another")
    folder = tmp_path / "kept"
    folder.mkdir()
    caches = {"triton": triton, "inductor": inductor, "vllm": tmp_path / "nosuch"}
    assert copy_cached({"one", "three"}, caches, folder) == 2
    kept = {path.name.partition("-")[0]: path.read_text() for path in folder.iterdir()}
    assert kept == {"triton": "1", "inductor": "another"}
    assert all(path.suffix == ".cubin" for path in folder.iterdir())


def test_what_vanishes_or_does_not_fit_is_left_out(tmp_path: Path) -> None:
    triton = _cache(tmp_path / "t", one__cubin="1", two__cubin="2", three__cubin="3" * 5000)
    (triton / "key0" / "one.cubin").unlink()
    (triton / "key0" / "one.cubin").symlink_to("nosuch")
    folder = tmp_path / "kept"
    folder.mkdir()
    with files_of_at_most(1000):
        assert copy_cached({"one", "two", "three"}, {"triton": triton}, folder) == 1
    assert [path.read_text() for path in folder.iterdir()] == ["2"]

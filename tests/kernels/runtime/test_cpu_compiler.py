"""A kernel is compiled for the CPU once per source, and what hinders that is one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime.code import KernelCode
from tests.emulator.compiler import compiler, shared_library

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

SOURCE = '#include "platform.cuh"\n#include "amount.cuh"\n'
KERNEL = "KERNEL add(int* to) { *to += AMOUNT + MORE; }\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source with a header, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write(tmp_path / "first")


def write(folder: Path, kernel: str = KERNEL, amount: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "amount.cuh").write_text(f"#define AMOUNT {amount}\n")
    (folder / "add.cu").write_text(SOURCE + kernel)
    return folder / "add.cu"


def code(source: Path, more: int = 0) -> KernelCode:
    return KernelCode(str(source), "add", (("MORE", more),))


def kept(tmp_path: Path) -> int:
    return sum(path.is_file() for path in (tmp_path / "cache").rglob("*"))


@needs_compiler
def test_the_same_source_is_compiled_once(source: Path, tmp_path: Path) -> None:
    library = shared_library(code(source))
    assert shared_library(code(source)) == library
    assert shared_library(code(write(tmp_path / "second"))) == library
    assert kept(tmp_path) == 1


@needs_compiler
def test_a_change_of_source_header_or_constant_is_compiled(source: Path, tmp_path: Path) -> None:
    shared_library(code(source))
    shared_library(code(source, more=1))
    shared_library(code(write(source.parent, amount=2)))
    shared_library(code(write(source.parent, KERNEL.replace("+=", "-="))))
    assert kept(tmp_path) == 4


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    assert shared_library(code(source))[:4] == b"\x7fELF"


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (KERNEL.replace("MORE", "missing"), r"add.cu:3:\S+ error: .*missing"),
        ("KERNEL add(double by, int* to) { *to += by; }\n", "a pointer, an int or a float"),
        (KERNEL.replace(" add(", " subtract("), "error: .*add"),
        ('#include "nowhere.cuh"\n', "nowhere.cuh"),
    ],
)
def test_an_error_of_the_compiler_is_one_line(source: Path, kernel: str, message: str) -> None:
    write(source.parent, kernel)
    with pytest.raises(KernelError, match=message) as raised:
        shared_library(code(source))
    assert "\n" not in str(raised.value)


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C++ compiler")
    with pytest.raises(KernelError, match="no such source: "):
        shared_library(code(tmp_path / "missing.cu"))


def test_without_a_compiler_the_line_says_what_to_install(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.delenv("CXX", raising=False)
    assert compiler() is None
    with pytest.raises(KernelError, match=r"no C\+\+ compiler: .*install g\+\+"):
        shared_library(code(source))


@needs_compiler
def test_the_variable_cxx_names_the_compiler(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which((compiler() or [""])[0])
    monkeypatch.setenv("CXX", f"{found} -DFROM_CXX=1")
    shared_library(code(write(source.parent, KERNEL.replace("MORE", "FROM_CXX"))))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler() not in (None, ["no-such-compiler"])

"""Machine code of sources: what a source says of its kernels, NVRTC, and the cache of the code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_prof.extras import install_command
from spark_prof.kernels import dense, moe, normed_experts, routing
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.runtime import compiled, compiler
from spark_prof.kernels.runtime.code import KernelCode, parameter_count
from spark_prof.kernels.runtime.compiled import keep_compiled, kept_compiled
from spark_prof.kernels.runtime.compiler import architecture_of, compile_code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spark-prof" / "kernels"


def test_any_damaged_byte_and_any_cut_is_seen(folder: Path) -> None:
    keep_compiled("key", b"machine code")
    path = folder / "key"
    assert list(folder.iterdir()) == [path], "a temporary file was left"
    assert folder.stat().st_mode & 0o077 == 0
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert kept_compiled("key") is None, at
        path.write_bytes(whole[:at])
        assert kept_compiled("key") is None, at
    path.write_bytes(whole + b"\0")
    assert kept_compiled("key") is None
    keep_compiled("key", b"machine code")
    assert kept_compiled("key") == b"machine code"
    path.rename(folder / "other")
    assert kept_compiled("other") is None


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_compiled("key", b"machine code")
    assert kept_compiled("key") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_machine_code_of_another_user_is_not_taken(folder: Path) -> None:
    keep_compiled("key", b"machine code")
    os.chown(folder / "key", 65534, -1)
    assert kept_compiled("key") is None


def test_the_oldest_go_where_all_are_too_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_MOST_BYTES", 10_000)
    for age, key in enumerate("abcdefghi"):
        keep_compiled(key, bytes(968))  # 1,000 with its digest
        os.utime(folder / key, ns=(0, age))
    assert len(list(folder.iterdir())) == 9
    keep_compiled("new", bytes(1968))
    assert sorted(path.name for path in folder.iterdir()) == ["e", "f", "g", "h", "i", "new"]
    assert kept_compiled("new") == bytes(1968)
    assert kept_compiled("a") is None


PRIMITIVES = str(Path(__file__).with_name("primitives.cu"))


OURS = {"dense": 13, "gate_up": 14, "down": 12, "route": 9, "norm_route": 20}


def test_bounds_on_launches_are_no_parameters() -> None:
    codes = [*dense.codes(), *moe.codes(), *routing.codes(), *normed_experts.codes()]
    assert {code.entry: parameter_count(code) for code in codes} == OURS


def test_a_source_without_the_kernel_is_refused() -> None:
    with pytest.raises(KernelError, match=r"primitives.cu has no KERNEL to_bf$"):
        parameter_count(KernelCode(PRIMITIVES, "to_bf"))


pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

SOURCE = """
#include "platform.cuh"
#include "own.cuh"
KERNEL times(const u16* x, float* y, int n) {
    wait_for_previous_kernel();
    if (threadIdx.x < n) y[threadIdx.x] = bf16_to_float(x[threadIdx.x]) * FACTOR + OWN;
    y[0] += bf16_to_float(multiply_bf16x2(x[0], x[1]) & 0xffffu);
    start_next_kernel();
}
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "own.cuh").write_text("#define OWN 1\n")
    path = tmp_path / "times.cu"
    path.write_text(SOURCE)
    return path


def code(path: Path, entry: str = "times", factor: int = 3) -> KernelCode:
    return KernelCode(str(path), entry, (("FACTOR", factor),))


def kept(path: Path) -> list[Path]:
    return sorted((path.parent / "cache" / "spark-prof" / "kernels").iterdir())


def test_whatever_changes_the_machine_code_changes_the_file_that_is_kept(source: Path) -> None:
    first = compile_code(code(source), "sm_90a")
    assert compile_code(code(source), "sm_90a") == first
    assert len(kept(source)) == 1
    compile_code(code(source, factor=4), "sm_90a")
    compile_code(code(source), "sm_80")
    (source.parent / "own.cuh").write_text("#define OWN 2\n")
    compile_code(code(source), "sm_90a")
    source.write_text(SOURCE + "// the same again\n")
    compile_code(code(source), "sm_90a")
    assert len(kept(source)) == 5


def test_what_is_kept_is_used_and_what_is_damaged_is_compiled_again(source: Path) -> None:
    cubin = compile_code(code(source), "sm_90a")
    (path,) = kept(source)
    keep_compiled(path.name, cubin + b"kept")
    assert compile_code(code(source), "sm_90a") == cubin + b"kept"
    path.write_bytes(path.read_bytes()[:-1])
    assert compile_code(code(source), "sm_90a") == cubin
    assert compile_code(code(source), "sm_90a") == cubin
    assert kept(source) == [path]


@pytest.mark.parametrize(
    ("text", "arch", "says"),
    [
        ("KERNEL times() { nothing(); }", "sm_90a", 'identifier "nothing" is undefined'),
        ("#include <cuda_bf16.h>", "sm_90a", "cannot open source file"),
        ('KERNEL times() { asm("nonsense;"); }', "sm_90a", "ptxas"),
        ("KERNEL times() {}", "sm_50", "gpu-architecture"),
        ("KERNEL times() {}", "nonsense", "gpu-architecture"),
    ],
)
def test_what_does_not_compile_is_told_in_one_line(
    source: Path, text: str, arch: str, says: str
) -> None:
    source.write_text('#include "platform.cuh"\n' + text)
    with pytest.raises(KernelError, match=says) as caught:
        compile_code(code(source), arch)
    assert "\n" not in str(caught.value)
    assert "times.cu" in str(caught.value)


def test_without_nvrtc_it_is_said_what_to_install(tmp_path: Path) -> None:
    """A package named cuda that holds nothing stands in front of NVIDIA's."""
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").touch()
    program = (
        "from spark_prof.kernels.runtime.compiler import compile_code\n"
        "from spark_prof.kernels.runtime.code import KernelCode\n"
        "compile_code(KernelCode('x.cu', 'x'), 'sm_90a')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(compiler.__file__).parents[3])])
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert ended.returncode == 1
    assert f"is missing; install it with: {install_command('kernels')}" in ended.stderr


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"),
        ((10, 0), "sm_100f"), ((10, 3), "sm_103f"), ((11, 0), "sm_110"), ((12, 0), "sm_120f"),
        ((12, 1), "sm_121a"),
    ],
)  # fmt: skip
def test_the_target_of_a_gpu_is_one_that_nvrtc_knows(
    source: Path, capability: tuple[int, int], arch: str
) -> None:
    assert architecture_of(capability) == arch
    assert compile_code(code(source), arch)
    with pytest.raises(KernelError, match=r"no bf16 tensor cores; these kernels need 8\.0"):
        architecture_of((7, 5))


@pytest.mark.parametrize(
    ("arch", "native"),
    [("sm_90a", False), ("sm_100f", True), ("sm_103f", True), ("sm_120f", True),
     ("sm_121a", True), ("sm_120", False), ("sm_121", False)],
)  # fmt: skip
def test_the_targets_chosen_are_those_with_e2m1_conversions(
    source: Path, arch: str, native: bool
) -> None:
    source.write_text(
        '#include "platform.cuh"\n'
        "KERNEL times(u16* y, float a, float b) {\n"
        '  asm("{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, %1, %2; cvt.u16.u8 %0, t; }"'
        ' : "=h"(*y) : "f"(a), "f"(b)); }\n'
    )
    if native:
        assert compile_code(code(source), arch)
    else:
        with pytest.raises(KernelError, match="e2m1x2"):
            compile_code(code(source), arch)

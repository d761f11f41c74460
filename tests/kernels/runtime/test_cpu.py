"""On the CPU a kernel's mistake ends its launch with a line that names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.kernel_error import KernelError  # noqa: E402
from spark_prof.kernels.runtime.code import KernelCode  # noqa: E402
from tests.emulator.compiler import compiler  # noqa: E402
from tests.emulator.run import run_on_cpu  # noqa: E402
from tests.rows import each_row  # noqa: E402

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

SIZE = 64
"""Elements of the tensors `out` and `in`, and threads of the block."""
MISTAKES = [
    ("if (lane_id()) sync_block(); else shuffle(1u, 0u);",
     "deadlock: of 64 threads 2 wait at a shuffle, 62 wait at sync_block, 0 have left"),
    ("if (threadIdx.x == 3) return; if (threadIdx.x < 32) sync_warp(); else sync_block();"
     "if (threadIdx.x == 0) sync_warp(); else sync_block();",
     "deadlock: of 64 threads 1 wait at sync_warp, 62 wait at sync_block, 1 have left"),
    ("if (lane_id() < 5) sync_warp(); else shuffle(1u, 0u);",
     "a lane is at a shuffle and another lane of its warp at sync_warp"),
    ("if (lane_id() == 7) return; shuffle(1u, 7u);", "a shuffle from lane 7, which has left"),
    ("if (lane_id() == 7) return; float d[4]; multiply_add_16x8x16(d, 0, 0, 0, 0, 0, 0);",
     "multiply_add_16x8x16 without all 32 lanes"),
    ("held[threadIdx.x] = 1; out[0] = held[threadIdx.x ^ 1];",
     "a race: it writes shared memory that thread 0 reads"),
    ("out[0] = held[threadIdx.x ^ 1]; held[threadIdx.x] = 1;",
     "a race: it reads shared memory that thread 0 writes"),
    ("held[threadIdx.x / 2] = 1;", "a race: it writes shared memory that thread 0 writes"),
    ("held[threadIdx.x] = 1; sync_warp(); out[0] = held[threadIdx.x ^ 32];",
     "a race: it writes shared memory that thread 0 reads"),
    ("out[0] = held[0]; sync_warp(); if (threadIdx.x == 63) held[0] = 1;",
     "a race: it writes shared memory that thread"),
    ("held[threadIdx.x] = 1; shuffle(1u, 0u); out[0] = held[threadIdx.x ^ 1];",
     "a race: it reads shared memory that thread 30 writes"),
    ("if (!threadIdx.x) held[5] = 0; atomicAdd(held + 5, 1);",
     "a race: it writes shared memory that thread 0 writes"),
    ("atomicAdd(held, 1); if (threadIdx.x == 63) out[0] = held[0];",
     "a race: it reads shared memory that thread 63 writes"),
    ("if (threadIdx.x == 1) out[0] = held[0]; atomicAdd(held, 1);",
     "a race: it reads shared memory that thread 0 writes"),
    ("out[threadIdx.x + 1] = 1;", "thread 63: a write of 4 bytes outside of every tensor"),
    ("out[0] = in[threadIdx.x - 1];", "thread 0: a read of 4 bytes outside of every tensor"),
    ("reinterpret_cast<uint4*>(out)[threadIdx.x] = {};", "a write of 16 bytes outside"),
    ("atomicAdd(out + threadIdx.x + 1, 1);", "a write of 4 bytes outside of every tensor"),
    ("load_16(in + 4 * threadIdx.x);", "thread 16: a load of 16 bytes outside of every tensor"),
    ("load_once_8(in + 1);", "a load of 8 bytes from a misaligned address"),
    ("load_16(held);", "a load of 16 bytes outside of every tensor"),
    ("out[0] = reinterpret_cast<const uint2*>(in + 1)->x;", "misaligned"),
    ("out[0] = *none;", "a null pointer"),
    ("held[threadIdx.x + 4] = 1;", "an index outside of its array"),
    ("int own[4] = {}; own[in[5]] = 1; out[0] = own[in[3]];", "an index outside of its array"),
    ("out[0] = 1 << (in[31] + 1);", "a shift by more than its type has"),
    ("out[0] = 0x7fffffff + in[1];", "a sum beyond its type"),
    ("out[0] = 0x10000 * (in[63] << 10);", "a product beyond its type"),
    ("out[0] = 5 / in[0];", "a division by zero"),
    ("out[0] = int(in[1] * 1e10f);", "a float that its integer type cannot hold"),
    ("out[0] = select_bytes(1, 2, 0x3218);", "select_bytes with selector 0x3218"),
]  # fmt: skip
CORRECT = [
    "held[threadIdx.x] = 1; sync_block(); out[threadIdx.x] = held[threadIdx.x ^ 32];",
    "held[threadIdx.x] = 1; sync_warp(); out[threadIdx.x] = held[threadIdx.x ^ 1];",
    "out[threadIdx.x] = held[0] + 2; sync_block(); if (threadIdx.x == 9) held[0] = 1;",
    "held[threadIdx.x] = 1; held[threadIdx.x] += 1; out[threadIdx.x] = held[threadIdx.x] - 1;",
    "if (!threadIdx.x) held[0] = 0; sync_block(); atomicAdd(held, 1); sync_block();"
    "out[threadIdx.x] = held[0] / 64;",
    "if (!lane_id()) held[warp_id()] = 0; sync_warp(); atomicAdd(held + warp_id(), 1);"
    "sync_warp(); out[threadIdx.x] = held[warp_id()] / 32;",
    "static constexpr int constants[] = {1, 1}; out[threadIdx.x] = constants[in[threadIdx.x] & 1];",
    "if (threadIdx.x < 50) { sync_block(); sync_block(); } out[threadIdx.x] = 1;",
    "atomicAdd(out, 1); out[threadIdx.x] = 1;",
]
UNWRITTEN = [
    "out[threadIdx.x] = held[threadIdx.x] == -1;",
    "SHARED float own[2]; out[threadIdx.x] = own[1] != own[1];",
    # Nothing is left of the block before.
    "out[threadIdx.x] = held[threadIdx.x] == -1; held[threadIdx.x] = 5;",
]
UNSET = (
    "float own[8]; if (in[threadIdx.x] > 99) own[in[1]] = 0; out[threadIdx.x] = own[in[1]] != 0;"
)
SNIPPETS = [*(snippet for snippet, _ in MISTAKES), *CORRECT, *UNWRITTEN, UNSET]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> KernelCode:
    """All snippets in one kernel, which is told which one to run."""
    cases = "".join(f"if (which == {i}) {{ {s} }}\n" for i, s in enumerate(SNIPPETS))
    path: Path = tmp_path_factory.mktemp("snippets") / "snippets.cu"
    path.write_text(
        '#include "platform.cuh"\n'
        "KERNEL snippets(int which, int* out, const int* in, const int* none) {\n"
        f"SHARED int held[{SIZE}];\n{cases}}}\n"
    )
    return KernelCode(str(path), "snippets")


def run(code: KernelCode, snippet: str) -> torch.Tensor:
    out = torch.zeros(SIZE, dtype=torch.int32)
    given = torch.arange(SIZE, dtype=torch.int32)
    which = SNIPPETS.index(snippet)
    run_on_cpu(code, (2, 1, 1), SIZE, [which, out, given, None])
    return out


@each_row(("snippet", "message"), MISTAKES)
def test_a_mistake_is_named(code: KernelCode, snippet: str, message: str) -> None:
    with pytest.raises(KernelError, match=re.escape(message)):
        run(code, snippet)


@each_row("snippet", UNWRITTEN)
def test_shared_memory_starts_as_nan_in_each_block(code: KernelCode, snippet: str) -> None:
    assert (run(code, snippet) == 1).all()

"""Instructions of the main loops of the FP4 kernels, by how codes become BF16; nothing is run.

Beside the package's integer operations: Blackwell's conversions to FP16, whose result is shifted
into BF16, and straight to BF16, which NVRTC has from 13.2 on. Both want another order of the packed
bits, so those kernels are counted, not right. The kernel for W4A4 converts nothing. It is beside
that for W4A16 of the same layer. A unit is 16 x 128 weights, of which a lane has 32 bytes.

usage: python benchmarks/loop_instructions.py [--target sm_121a] [--tokens 1]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cuda.bindings import nvrtc

from spark_prof.kernels import dense, dense_w4a4, moe
from spark_prof.kernels.candidate import ActivationName
from spark_prof.kernels.operands import token_tiles
from spark_prof.kernels.runtime.code import SOURCES, KernelCode
from spark_prof.rules.gpus import GPUS
from spark_prof.traces.cuda_tools import needed_tool, run_tool

_HEADER = "weights.cuh"
_FUNCTION = re.compile(r"INLINE void expand_e2m1\(.*?\n}\n", re.DOTALL)
_OPERANDS = ", ".join(f'"=r"(pairs[{i}])' for i in range(4))
_CONVERTED = """INLINE void expand_e2m1(u32 word, u32 (&pairs)[4]) {{
    asm("{{.reg .b8 a, b, c, d; mov.b32 {{a, b, c, d}}, %4; cvt.rn.{to}.e2m1x2 %0, a;"
        "cvt.rn.{to}.e2m1x2 %1, b; cvt.rn.{to}.e2m1x2 %2, c; cvt.rn.{to}.e2m1x2 %3, d;}}"
        : {outputs} : "r"(word));
{after}}}
"""
_SHIFTED = """#pragma unroll
    for (int i = 0; i < 4; ++i)
        pairs[i] = (pairs[i] & 0x80008000u) | ((pairs[i] >> 3) & 0x0FC00FC0u);
"""
VARIANTS: Mapping[str, str | None] = {
    "integers": None,
    "cvt to f16x2": _CONVERTED.format(to="f16x2", outputs=_OPERANDS, after=_SHIFTED),
    "cvt to bf16x2": _CONVERTED.format(to="bf16x2", outputs=_OPERANDS, after=""),
}
"""By name what stands in the place of `expand_e2m1`, None for itself."""

CLOCK = 2e9
"""Which a GB10 exceeds under load, as reported; a multiprocessor issues 4 instructions a cycle."""

_SHAPES: tuple[tuple[str, int, int, ActivationName], ...] = (
    ("mxfp4", 2880, 2880, "swiglu"),
    ("nvfp4", 2048, 768, "silu"),
)
_DOWN = 4096, 14336
"""Rows and columns of the down matrix of Llama-3.1-8B, whose loop is not unrolled to its end."""


def codes(tokens: int) -> Iterator[tuple[str, KernelCode]]:
    """The kernels of gpt-oss and Qwen3-30B-A3B, and of Llama's down in FP4, by default."""
    for form, hidden, inner, activation in _SHAPES:
        linear = dense.default_config(5120, hidden, tokens, form)
        config = moe.default_config(hidden, tokens, 48, form)
        yield f"{form} dense", dense.dense_code(form, hidden, tokens, linear)
        yield f"{form} gate_up", moe.gate_up_code(form, hidden, activation, tokens, config)
        yield f"{form} down", moe.down_code(form, inner, tokens, config)
    rows, columns = _DOWN
    linear = dense.default_config(rows, columns, tokens, "nvfp4")
    yield "nvfp4 W4A16", dense.dense_code("nvfp4", columns, tokens, linear)
    config_w4a4 = dense_w4a4.default_config(columns)
    yield _W4A4, dense_w4a4.w4a4_code(columns, tokens, config_w4a4)


_W4A4 = "nvfp4 W4A4"


def compiled(code: KernelCode, target: str, expand: str | None) -> bytes | None:
    """Its machine code with that in the place of `expand_e2m1`; None where NVRTC refuses it."""
    headers = {path.name: path.read_text(encoding="utf-8") for path in SOURCES.glob("*.cuh")}
    if expand is not None:
        headers[_HEADER], count = _FUNCTION.subn(lambda _: expand, headers[_HEADER])
        assert count == 1
    source = (SOURCES / code.source).read_bytes()
    texts = [text.encode() for text in headers.values()]
    names = [name.encode() for name in headers]
    _, program = nvrtc.nvrtcCreateProgram(source, b"", len(names), texts, names)
    options = [f"--gpu-architecture={target}", "-std=c++17"]
    options += [f"-D{name}={value}" for name, value in code.defines]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if result.value:
        return None
    cubin = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return bytes(cubin)


def listing(cubin: bytes) -> list[str]:
    """What nvdisasm prints of it."""
    lines: list[str] = []
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command: list[str | Path] = [needed_tool("nvdisasm"), "-c", file.name]
        run_tool(command, 60, lambda line: lines.append(line.decode()))
    return lines


_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?(\S+)(.*?);")


def loop_of(lines: list[str]) -> tuple[int, int]:
    """Instructions and tensor-core products of the smallest loop that has most of those."""
    labels: dict[str, int] = {}
    opcodes: list[str] = []
    best = (0, 0)
    for line in lines:
        if label := _LABEL.match(line):
            labels[label[1]] = len(opcodes)
        if not (instruction := _INSTRUCTION.search(line)):
            continue
        opcodes.append(instruction[1])
        target = re.search(r"\.L_x_\d+", instruction[2])
        if instruction[1].startswith("BRA") and target and target[0] in labels:
            body = [op for op in opcodes[labels[target[0]] :] if op != "NOP"]
            products = sum(op.startswith(("HMMA", "OMMA")) for op in body)
            best = max(best, (products, -len(body)))
    return -best[1], best[0]


_PRODUCTS, _FP4_PRODUCTS = 8, 2
"""Tensor-core products of a unit for 8 tokens: in BF16 and, in W4A4, in FP4."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="sm_121a")
    parser.add_argument("--tokens", type=int, default=1, choices=range(1, 17), metavar="1 to 16")
    options = parser.parse_args()
    target, tokens = options.target, options.tokens
    version = ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
    print(f"instructions of a unit for {target}, NVRTC {version} (of a weight byte of a lane)")
    for name, code in codes(tokens):
        texts = []
        products_of_unit = token_tiles(tokens) * (_FP4_PRODUCTS if name == _W4A4 else _PRODUCTS)
        variants = {"no conversion": None} if name == _W4A4 else VARIANTS
        for variant, expand in variants.items():
            cubin = compiled(code, target, expand)
            if cubin is None:
                texts.append(f"{variant}: does not compile")
                continue
            count, products = loop_of(listing(cubin))
            unit = count * products_of_unit / products
            texts.append(f"{variant}: {unit:.0f} ({unit / 32:.1f})")
        print(f"{name:14} {'   '.join(texts)}")
    print(f"that can be issued while a unit of MXFP4 is read, at {CLOCK / 1e9:.0f} GHz:")
    for gpu in GPUS:
        if gpu.compute_capability.split(".")[0] in ("9", "10", "12"):
            rate = gpu.bandwidth.value / gpu.multiprocessors
            print(f"  {gpu.name:30} {4 * CLOCK * 16 * 128 * 17 / 32 / rate:6.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

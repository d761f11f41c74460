"""The kernels of Llama-3.1-8B's layers in FP8 on a GPU: each with some configurations, and all.

A configuration is timed in a CUDA graph of launches one behind another, each on weights of its own
that no cache holds. Then all 32 layers as slot `layer` and slot `o` run them, without an engine, on
random weights: what a step takes with all kernels, and without one of them.

usage: python benchmarks/dense_layers.py RESULT.json [--tokens 1 8] [--no-search]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.graph_replays import replay_times
from spark_prof.kernels.attention import attend, ready
from spark_prof.kernels.candidate import NormLayer
from spark_prof.kernels.check.attention_cases import AttentionCase
from spark_prof.kernels.dense import LinearConfig, default_config, dense_code, launch_dense, linear
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.normed_linear import normed_config, normed_linear
from spark_prof.kernels.normed_mlp import PackedMlp, mlp_config, normed_mlp
from spark_prof.kernels.operands import multiprocessors
from spark_prof.kernels.pack import PackedLinear
from spark_prof.kernels.runtime.launch import prepare

HIDDEN, INNER, HEADS, KV_HEADS, SIZE, LAYERS, CONTEXT = 4096, 14336, 32, 8, 128, 32, 230
QKV = (HEADS + 2 * KV_HEADS) * SIZE
COLD = 400_000_000  # bytes of weights that no cache holds
SEARCHED = tuple(
    LinearConfig(*fields)
    for fields in (
        (16, 16, 2, 0, 1, 1), (16, 16, 3, 0, 1, 1), (16, 8, 2, 0, 1, 1), (16, 8, 3, 0, 1, 1),
        (16, 4, 3, 0, 1, 1), (16, 2, 3, 0, 1, 1), (8, 8, 4, 0, 1, 1), (8, 8, 2, 0, 3),
        (8, 8, 2, 1, 2), (8, 8, 3, 0, 2), (8, 8, 3, 0, 2, 2), (8, 8, 3, 1, 2, 2), (4, 4, 2, 0, 6),
        (4, 4, 3, 0, 4, 4), (8, 4, 2, 1, 2, 2),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """A matrix of the model."""

    name: str
    rows: int
    columns: int
    normed: bool = False  # behind a norm, which its kernel makes where rows fit
    gated: bool = False


MATRICES = (
    Matrix("qkv", QKV, HIDDEN, normed=True),
    Matrix("o", HIDDEN, HEADS * SIZE),
    Matrix("gate_up", 2 * INNER, HIDDEN, normed=True, gated=True),
    Matrix("down", HIDDEN, INNER),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--no-search", action="store_true", help="time the layers alone")
    options = parser.parse_args()
    device = torch.device("cuda")
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
    if not options.no_search:
        result["configurations"] = [
            row
            for tokens in options.tokens
            for m in MATRICES
            for row in searched(m, tokens, device)
        ]
    result["layers_ms"] = {str(tokens): layers(tokens, device) for tokens in options.tokens}
    options.result.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result["layers_ms"], indent=1))
    return 0


def random_weight(rows: int, columns: int, device: torch.device) -> PackedLinear:
    """FP8 weights as they are packed, with a scale for each row."""
    codes = torch.randint(0, 100, (rows * columns,), dtype=torch.uint8, device=device)
    scales = torch.full((rows,), 0.001, device=device)
    return PackedLinear("fp8", rows, columns, codes, codes[:0], scales)


def searched(matrix: Matrix, tokens: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """Each configuration with its time, the default first."""
    rows, columns = matrix.rows, matrix.columns
    fused = normed_config(rows, columns, tokens, "fp8", multiprocessors(device))
    normed = matrix.normed and fused is not None
    default = fused if matrix.normed and fused else default_config(rows, columns, tokens, "fp8")
    configs = tuple(dict.fromkeys((default, *SEARCHED)))
    codes = [dense_code("fp8", columns, tokens, c, normed, matrix.gated) for c in configs]
    prepare(codes, device)
    weights = [random_weight(rows, columns, device) for _ in range(-(-COLD // (rows * columns)))]
    x = torch.randn(tokens, columns, device=device).bfloat16()
    norm = NormLayer("", torch.ones(columns, device=device), 1e-5)
    out = x.new_empty(tokens, rows // 2 if matrix.gated else rows)

    def run(config: LinearConfig) -> None:
        for weight in weights:
            if normed:
                normed_linear(x, x, norm, weight, None, config, True, matrix.gated)
            else:
                launch_dense(x, weight, None, out, config, dependent=True, gated=matrix.gated)

    for config in configs:
        try:
            us = milliseconds(partial(run, config)) * 1e3 / len(weights)
        except KernelError:  # its rows do not fit
            continue
        yield {
            "matrix": matrix.name, "tokens": tokens, "config": astuple(config), "us": us,
            "default": config == default,
        }  # fmt: skip


def layers(tokens: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of all layers, and without one of their kernels."""
    norm = NormLayer("", torch.ones(HIDDEN, device=device), 1e-5)
    weights = [[random_weight(m.rows, m.columns, device) for m in MATRICES] for _ in range(LAYERS)]
    case = AttentionCase(HEADS, KV_HEADS, SIZE, (CONTEXT,) * tokens)
    attention = ready(case.layer(str(device)))
    _, *cache = case.arguments(str(device))
    x0 = torch.randn(tokens, HIDDEN, device=device).bfloat16()
    mlps = [PackedMlp(norm, up, down) for _, _, up, down in weights]
    mlp_configs = mlp_config(mlps[0], tokens)
    qkv_config, o_config = (default_config(m.rows, m.columns, tokens, "fp8") for m in MATRICES[:2])
    fused = normed_config(QKV, HIDDEN, tokens, "fp8", multiprocessors(device))

    def step(without: str) -> None:
        x, residual = x0, x0
        y = x.new_empty(tokens, QKV)
        for (qkv, o, *_), mlp in zip(weights, mlps, strict=True):
            if without != "qkv":
                y, residual = normed_linear(
                    x, residual, norm, qkv, None, fused or qkv_config, dependent=True
                )
            attended = y[:, : HEADS * SIZE]
            if without != "attention":
                attended = attend(attention, y, *cache)
            x = x0 if without == "o" else linear(attended, o, None, None, o_config, dependent=True)
            if without != "mlp":
                x, residual = normed_mlp(x, residual, mlp, mlp_configs, dependent=True)

    left_out = ("", "qkv", "attention", "o", "mlp")
    return {f"without {n}" if n else "all": milliseconds(partial(step, n)) for n in left_out}


def milliseconds(run: Callable[[], None]) -> float:
    """The median time of a CUDA graph of these launches."""
    _, times = replay_times(run, 10)
    return float(median(times[1:]))


if __name__ == "__main__":
    raise SystemExit(main())

"""Writes spark_prof/rules/measured_steps.json: the decode steps that findings quote.

They are the batch sizes of results/engine-steps-h200.json for which both the stock side and one of
this package were timed, of the models below; and what `ab` measured of them under vLLM 0.33, which
runs other kernels.

usage: python benchmarks/measured_steps.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_prof.ab.result import from_json

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks/results/engine-steps-h200.json"
STORED = ROOT / "spark_prof/rules/measured_steps.json"
VLLM, TOKENS = "0.26.0", 1
CAPABILITIES = {"NVIDIA H200": "9.0"}
MODELS = {
    "gpt-oss-20b": {
        "class_": "GptOssForCausalLM", "layers": 24, "experts": 425_615_360, "stock": "Triton",
    },
    "qwen3-30b-a3b-nvfp4": {
        "class_": "Qwen3MoeForCausalLM", "layers": 48, "experts": 339_739_648, "stock": "Marlin",
    },
}  # fmt: skip
"""Their class in vLLM, layers, bytes of one layer's experts, and family of stock vLLM's kernels."""
AB_VLLM = "0.33.0"
AB_STOCK = {"gpt-oss-20b": "Triton", "qwen3-30b-a3b-nvfp4": "Humming"}
"""The family of stock vLLM's kernels there, by the model of a result of `ab` with slot layer."""


def rows(stored: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One a model and side, with the times and kernels of stock vLLM first."""
    # Where a side insisted (`spark_prof!`) the dispatcher may leave a matrix to vLLM's kernel,
    # which is as fast there.
    sides = {(row["model"], row["side"].replace("!", "")): row for row in stored}
    for (model, side), row in sides.items():
        if model not in MODELS or side == "stock":
            continue
        both = [sides[model, "stock"]["batches"], row["batches"]]
        stock, swapped = (batches[str(TOKENS)] for batches in both)
        yield {
            "model": model,
            **MODELS[model],
            "tokens": TOKENS,
            "machine": row["gpu"],
            "capability": CAPABILITIES[row["gpu"]],
            "side": side,
            "kernel": dict(word.split("=") for word in side.split(","))["layer"],
            "wall_ms": [round(stock["wall_ms"], 3), round(swapped["wall_ms"], 3)],
            "device_ms": [round(stock["device_ms"], 3), round(swapped["device_ms"], 3)],
            "kernels": [int(stock["kernels"]), int(swapped["kernels"])],
            "vllm": VLLM,
        }


def ab_rows() -> Iterator[dict[str, Any]]:
    """The same of results of `ab`, which count no kernels."""
    for model, stock in AB_STOCK.items():
        path = ROOT / f"benchmarks/results/ab/{model}-layer-vllm033-h200.json"
        result = from_json(path.read_bytes(), str(path))
        (run,) = (run for run in result.runs if run.requests == TOKENS)
        wall = run.estimate.a_us, run.estimate.b_us
        device = run.device_a_us or wall[0], run.device_b_us or wall[1]
        machine, side = result.machine.gpu, result.sides[1].swaps
        yield {
            "model": model,
            **MODELS[model],
            "stock": stock,
            "tokens": TOKENS,
            "machine": machine,
            "capability": CAPABILITIES[machine],
            "side": side,
            "kernel": dict(word.split("=") for word in side.split(","))["layer"],
            "wall_ms": [round((us or 0.0) / 1e3, 3) for us in wall],
            "device_ms": [round((us or 0.0) / 1e3, 3) for us in device],
            "kernels": None,
            "vllm": AB_VLLM,
        }


def file_text() -> str:
    """What the file has."""
    stored = [*ab_rows(), *rows(json.loads(RESULT.read_text()))]
    return "[\n" + ",\n".join(f" {json.dumps(row)}" for row in stored) + "\n]\n"


if __name__ == "__main__":
    STORED.write_text(file_text())

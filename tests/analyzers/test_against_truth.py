"""Layers and components of an eager capture against an independent recording of the same model.

The reference put a range around every module of gpt-oss-20b by PyTorch's own hooks; ours came from
the recorder's marks. Both ran vLLM 0.26 on an H100, so a decode step launches the same kernels.
"""

from __future__ import annotations

import bisect
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import spark_prof
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.analyzers.classify.classifier import classify
from spark_prof.rules.components import component_of, layer_of

ROOT = Path(__file__).resolve().parents[2]
CAPTURE = ROOT / "tests/data/h100-gpt-oss-20b-mxfp4-eager"
TRUTH = "kineto/h100_vllm026_gptoss20b_mxfp4_eager_modhooks_bs1.json.gz"
REFERENCE = ROOT.parent / "shared/traces" / TRUTH

Placed = Counter[tuple[int, str]]


@pytest.fixture(scope="module")
def reference() -> Placed:
    """Kernels of one decode step by layer and component, from the reference's module ranges."""
    if not REFERENCE.exists():
        pytest.skip(f"the reference trace {TRUTH} is not on this machine")
    with gzip.open(REFERENCE) as file:
        events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
    steps = sorted(
        (e for e in events if e["cat"] == "user_annotation" and e["name"].startswith("execute_")),
        key=lambda e: float(e["ts"]),
    )
    step = steps[4]
    end = step["ts"] + step["dur"]
    ranges = sorted(
        (e for e in events if e["cat"] == "user_annotation" and e["name"].startswith("mod:")),
        key=lambda e: (float(e["ts"]), -float(e["dur"])),
    )
    launches = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e["cat"] in ("cuda_runtime", "cuda_driver")
    }
    starts = [e["ts"] for e in ranges]
    found: Placed = Counter()
    for kernel in (e for e in events if e["cat"] == "kernel"):
        launched = launches.get(kernel["args"]["correlation"], -1.0)
        if step["ts"] <= launched <= end:
            path = _innermost(ranges, starts, launched)
            # All layers share one rotary embedding, which has the path of the first.
            layer = layer_of(_innermost(ranges, starts, launched, ends_in_digit=True))
            if path and layer >= 0:
                found[layer, _component(path, kernel["name"])] += 1
    return found


def _innermost(
    ranges: list[dict[str, Any]], starts: list[float], moment: float, ends_in_digit: bool = False
) -> str:
    for index in range(bisect.bisect_right(starts, moment) - 1, -1, -1):
        path = str(ranges[index]["name"].removeprefix("mod:"))
        inside = ranges[index]["ts"] + ranges[index]["dur"] >= moment
        if inside and (path[-1].isdigit() or not ends_in_digit):
            return path
    return ""


def _component(path: str, kernel: str) -> str:
    """By the module; a KV write, and routing inside the experts, show by their names only."""
    named = classify(kernel).component
    if named in ("kv_write", "router"):
        return named
    return component_of(path, "") or "other"


def test_a_decode_step_by_layer_and_component(reference: Placed) -> None:
    bundle = spark_prof.load(CAPTURE)
    kernels = place_kernels(bundle, 0)
    steps = bundle.frame("steps", 0)
    decode = steps.loc[steps["phase"] == "decode", "step"].iloc[3]
    mine = kernels[(kernels["step"] == decode) & (kernels["layer"] >= 0)]
    mine = mine[mine["kind"] == "kernel"]
    found: Placed = Counter(zip(mine["layer"], mine["component"].astype(str), strict=True))
    assert sum(reference.values()) > 400
    assert found == reference

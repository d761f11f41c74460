"""Real traces of public projects and of our own runs, against a plain reading of their JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from spark_prof.traces.foreign import Foreign, Window
from spark_prof.traces.readers.kineto import kineto_trace
from spark_prof.traces.readers.kineto_collect import GPU_KINDS

REAL = Path(__file__).parents[4] / "shared" / "traces" / "kineto"
FILES = sorted(REAL.rglob("*.json.gz"))
pytestmark = pytest.mark.skipif(not FILES, reason=f"no traces in {REAL}")

MODULE = "nn.Module: "


def names_module(name: str) -> bool:
    return name.startswith((MODULE, "mod:"))


def read(path: Path) -> tuple[Foreign, Window]:
    found = kineto_trace(path, names_module)
    return found, next(found.windows)


def plain(path: Path) -> tuple[int, list[dict[str, Any]]]:
    with gzip.open(path) as file:
        document = json.load(file, parse_float=Decimal)
    whole = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    return document.get("baseTimeNanoseconds", 0), whole


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:40])
def test_every_row_is_exact_to_the_nanosecond_and_has_its_launch(path: Path) -> None:
    base, events = plain(path)
    wanted = Counter(
        (
            GPU_KINDS[event["cat"]], event["name"], base + int(Decimal(event["ts"]) * 1000),
            int(Decimal(event["dur"]) * 1000), event["args"]["correlation"],
            ",".join(map(str, event["args"].get("grid", []))),
        )
        for event in events if event["cat"] in GPU_KINDS
    )  # fmt: skip
    window = read(path)[1]
    gpu = window.trace.gpu
    lengths = gpu["end_ns"] - gpu["start_ns"]
    columns = (gpu["kind"], gpu["name"], gpu["start_ns"], lengths, gpu["correlation"], gpu["grid"])
    assert Counter(zip(*columns, strict=True)) == wanted
    calls = {
        event["args"]["correlation"]: base + int(Decimal(event["ts"]) * 1000)
        for event in events if event["cat"] in ("cuda_driver", "cuda_runtime", "Runtime")
    }  # fmt: skip
    assert window.launch_ns.tolist() == [calls.get(number, -1) for number in gpu["correlation"]]

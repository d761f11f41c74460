"""A range around every layer makes layers, whoever set it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.importers.sources import import_files
from spark_prof.traces.bundle import Bundle
from tests.nsys_files import PID, THREAD, Export, global_tid

LAYERS = 6
KERNELS = ("void vllm::rms_norm_kernel<c10::BFloat16>(int)", "my_product", "flash_fwd_kernel")
NAMES = ("layer_{}_computation", "layers.{}", "Decoder layer {}", "layer_{}_forward",
         "model.layers.{}.forward")  # fmt: skip


def launches() -> list[tuple[str, int, int]]:
    """Name, layer and time of the launch of each kernel."""
    return [(name, n, 1000 * (n + 1) + 10 * at) for n in range(LAYERS)
            for at, name in enumerate(KERNELS)]  # fmt: skip


def kineto(path: Path, name: str) -> Path:
    events = []
    for correlation, (kernel, _, at) in enumerate(launches(), 1):
        own = {"correlation": correlation}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1,
                       "tid": 1, "ts": at, "dur": 2, "args": own})  # fmt: skip
        # They all run long after the ranges have ended.
        events.append({"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7,
                       "ts": 50_000 + at, "dur": 5, "args": own | {"device": 0}})  # fmt: skip
    events += [
        {"ph": "X", "cat": "user_annotation", "name": name.format(n), "pid": 1, "tid": 1,
         "ts": 1000 * (n + 1) - 5, "dur": 100}
        for n in range(LAYERS)
    ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0}))
    return path


def nsys(path: Path, name: str) -> Path:
    export = Export()
    for correlation, (kernel, _, at) in enumerate(launches(), 1):
        export.launch(at, correlation).kernel(kernel, 50_000 + at, 50_005 + at, correlation)
    export.add("NVTX_EVENTS", start=1, end=None, eventType=75, text="my model", domainId=5,
               globalTid=global_tid(PID, THREAD))  # fmt: skip
    for n in range(LAYERS):
        export.add("NVTX_EVENTS", start=1000 * (n + 1) - 5, end=1000 * (n + 1) + 95, eventType=59,
                   text=name.format(n), domainId=5 * (n % 2),
                   globalTid=global_tid(PID, THREAD))  # fmt: skip
    return export.write(path)


def layers(bundle: Bundle) -> list[tuple[int, str]]:
    kernels = place_kernels(bundle, 0)
    return list(zip(kernels["layer"].tolist(), kernels["placed_by"].astype(str), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_each_kernel_is_in_the_layer_around_its_launch(name: str, tmp_path: Path) -> None:
    wanted = [(n, "") for _, n, _ in launches()]
    for path in (kineto(tmp_path / "t.json", name), nsys(tmp_path / "t.sqlite", name)):
        bundle = import_files([path], tmp_path / f"bundle-{path.suffix}")
        assert layers(bundle) == wanted, path.name
        assert not any("layers" in line for line in bundle.meta.lost)

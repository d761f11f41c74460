"""Times of the package's kernels from a model, beside measured ones, and what it says of a GB10.

The model (time_model.py) is fitted to the results of one GPU and predicts those of the other. An
H100 and an H200 have the same multiprocessors and differ in bandwidth, so the error between them
says nothing of other multiprocessors, latencies or clocks: the range for a GB10 has these too.
Nothing ran on a GB10.

usage: python benchmarks/predicted_times.py [--calls]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.kernel_targets import read_report
from benchmarks.time_model import (
    GpuFacts,
    MeasuredCall,
    TimeConstants,
    fit,
    scaled,
    streams_of,
)
from spark_prof.kernels import dense, moe
from spark_prof.kernels.bench.results import BenchCell, work_text
from spark_prof.kernels.tuning import TunedShape
from spark_prof.rules.gpus import Gpu, find_gpu

RESULTS = Path(__file__).resolve().parent / "results"
FILES: Mapping[str, tuple[str, ...]] = {
    "H100": ("kernels-h100.json", "kernels-bf16-h100.json"),
    "H200": (
        "kernels-vllm033-h200.json",
        "kernels-gpt-oss-20b-h200.json",
        "kernels-deepseek-v2-lite-h200.json",
    ),
}

TOKENS = (1, 8, 16)
AS_GOOD = 1.02
"""By how much longer a configuration may take that counts as as good as the best."""

LATENCY_US = 0.84
"""Of a load on a GB10 that is busy: 4 KB in flight a multiprocessor read 232.7 GB/s, as reported in
jayleaton/glm53-tensorfold-spark, docs/DECODE-KERNELS-2.md."""

FAST: Mapping[str, float] = {
    "efficiency": 238 / 231,  # the most that this document has of a kernel that only reads
    **dict.fromkeys(("call", "experts", "latency", "unit", "wide_unit", "bf16_unit"), 0.5),
}
SLOW: Mapping[str, float] = {
    "efficiency": 208 / 231,  # experts at 4 tokens, MiaAI's kernel of September 2026
    **dict.fromkeys(("call", "experts", "latency", "unit", "wide_unit", "bf16_unit"), 2.0),
    **dict.fromkeys(("warp_unit", "x"), 2.0),
}
"""What is not known of a GB10, as factors of what was fitted on an H100 and an H200."""

LAYERS = (("gpt-oss", ("bf16", "mxfp4")), ("Qwen3-30B-A3B", ("nvfp4",)))

Calls = list[tuple[BenchCell, MeasuredCall, GpuFacts]]


def calls_of(gpu: str) -> Calls:
    """What was timed on a GPU; its read bandwidth is that of the same run."""
    calls: Calls = []
    for name in FILES[gpu]:
        report = read_report(RESULTS / name)
        facts = facts_of(report.machine.name, report.ceilings.read.median)
        for cell in report.cells:
            if cell.ours is not None:
                call = MeasuredCall(
                    cell.work, cell.config, cell.bytes, cell.weight_bytes, cell.ours
                )
                calls.append((cell, call, facts))
    return calls


def facts_of(name: str, read: float | None = None) -> GpuFacts:
    """A GPU of the package's table, with the read bandwidth that was reported or this one."""
    gpu = _listed(name)
    read = gpu.bandwidth.value if read is None else read
    return GpuFacts(gpu.name, gpu.multiprocessors, read, gpu.compute_capability)


def _listed(name: str) -> Gpu:
    gpu = find_gpu(name)
    assert gpu is not None, name
    return gpu


def predicted(constants: TimeConstants, call: MeasuredCall, gpu: GpuFacts) -> float:
    return constants.us(call.work, streams_of(call), gpu)


def errors(constants: TimeConstants, calls: Calls) -> list[float]:
    """How far each call is off, without a sign."""
    return [abs(predicted(constants, call, gpu) / call.us - 1) for _, call, gpu in calls]


def spread_text(values: Sequence[float]) -> str:
    """Median and 90th percentile in percent."""
    if not values:
        return ""
    return f"{100 * np.median(values):.1f} / {100 * np.quantile(values, 0.9):.1f} ({len(values)})"


def error_lines(label: str, constants: TimeConstants, calls: Calls) -> Iterator[str]:
    """The error over all, and by format and tokens."""
    off = list(zip(errors(constants, calls), calls, strict=True))
    yield f"{label}: {spread_text([error for error, _ in off])}"
    kinds = sorted({(call.work.kernel, call.work.format) for _, call, _ in calls})
    for kind, form in kinds:
        columns = (
            spread_text([
                error for error, (_, call, _) in off
                if (call.work.kernel, call.work.format, call.work.tokens) == (kind, form, tokens)
            ])
            for tokens in TOKENS
        )  # fmt: skip
        yield f"  {kind:5} {form:5} " + "".join(f"{text:>22}" for text in columns)


@dataclass(frozen=True)
class Prediction:
    """A call on a GPU that nothing was timed on."""

    cell: BenchCell
    us: float
    low: float
    high: float
    in_flight: tuple[float, ...]  # bytes of a multiprocessor, by stream
    best_us: float
    best: Mapping[str, int]
    as_good: tuple[int, int]  # how many configurations are as good, and of how many


def predict(
    constants: TimeConstants, error: float, cell: BenchCell, configs: Sequence[Mapping[str, int]]
) -> Prediction:
    """With the default configuration, and with whichever is best.

    Args:
        error: the larger 90th percentile between the GPUs that were measured.
        configs: those that were chosen for some shape of this kind and format by measurements.
    """
    gpu = facts_of("GB10")
    gb10_constants = replace(constants, efficiency=1.0)
    config = default_of(cell.work, gpu)
    call = MeasuredCall(cell.work, config, cell.bytes, cell.weight_bytes, 1.0)
    us = predicted(gb10_constants, call, gpu)
    low = predicted(scaled(gb10_constants, FAST), call, gpu) / (1 + error)
    high = predicted(scaled(gb10_constants, SLOW), call, gpu) * (1 + error)
    times = [
        (predicted(gb10_constants, replace(call, config=other), gpu), other) for other in configs
    ]
    best_us, best = min(times, key=lambda pair: pair[0])
    as_good = sum(time <= best_us * AS_GOOD for time, _ in times)
    in_flight = tuple(stream.in_flight(gpu) for stream in streams_of(call))
    low = max(low, cell.bytes / _listed("GB10").memory_bandwidth.value * 1e6)
    return Prediction(cell, us, low, high, in_flight, best_us, best, (as_good, len(times)))


def default_of(work: TunedShape, gpu: GpuFacts) -> dict[str, int]:
    """The package's default configuration."""
    module = dense if work.kernel == "dense" else moe
    return asdict(module.config_for(work, gpu.multiprocessors))


def predictions(constants: TimeConstants, error: float, calls: Calls) -> Iterator[Prediction]:
    """Of the layers of the two models' families, each once."""
    cells = {cell.work: cell for cell, _, _ in calls}
    for model, formats in LAYERS:
        for cell in cells.values():
            work = cell.work
            if model not in cell.label or work.format not in formats or work.tokens not in TOKENS:
                continue
            configs = {
                tuple(sorted(call.config.items())): call.config
                for _, call, _ in calls
                if (call.work.kernel, call.work.format) == (work.kernel, work.format)
                and (call.work.tokens > 8) == (work.tokens > 8)
            }
            possible = [config for config in configs.values() if fits(config, work)]
            yield predict(constants, error, cell, possible)


def fits(config: Mapping[str, int], work: TunedShape) -> bool:
    """Whether a configuration of another shape is one of this shape."""
    if work.kernel != "dense":
        return config["split"] <= -(-work.columns // 128)
    linear = dense.LinearConfig(**config)
    if linear.x_ahead == 2 and not dense.room_for_rows(work.columns, work.tokens, linear):
        return False
    return linear.split <= -(-work.columns // 128)


def prediction_lines(rows: Sequence[Prediction]) -> Iterator[str]:
    """A line for each."""
    gpu = _listed("GB10")
    sheet = gpu.memory_bandwidth.value
    need = sheet * LATENCY_US * 1e-6 / gpu.multiprocessors / 1024
    yield f"A multiprocessor needs {need:.1f} KB in flight for {sheet / 1e9:.0f} GB/s."
    for row in rows:
        cell, share = row.cell, row.cell.weight_bytes / row.us * 1e6 / sheet
        flight = ", ".join(f"{size / 1024:.0f}" for size in row.in_flight)
        best = " ".join(map(str, row.best.values()))
        yield (
            f"{cell.label[:20]:20} {work_text(cell):46} {cell.weight_bytes / 1e6:6.1f} MB"
            f" {row.us:7.1f} us [{row.low:.1f}, {row.high:.1f}] {100 * share:3.0f} % of"
            f" {sheet / 1e9:.0f} GB/s, {flight} KB in flight; best {row.best_us:.1f} us ({best}),"
            f" {row.as_good[0]} of {row.as_good[1]} within {100 * (AS_GOOD - 1):.0f} %"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true", help="every call, predicted and measured")
    options = parser.parse_args()
    calls = {gpu: calls_of(gpu) for gpu in FILES}
    fitted = {gpu: fit([(call, facts) for _, call, facts in rows]) for gpu, rows in calls.items()}
    print("|predicted / measured - 1| in percent: median / 90th percentile (calls);", end=" ")
    print(f"columns: {', '.join(map(str, TOKENS))} tokens")
    between = 0.0
    for source, constants in fitted.items():
        print(f"{source}: {constants}")
        for target, rows in calls.items():
            print(*error_lines(f"fitted to {source}, of {target}", constants, rows), sep="\n")
            if source != target:
                off = errors(constants, rows)
                between = max(between, float(np.quantile(off, 0.9)))
            for cell, call, facts in rows if options.calls else ():
                us = predicted(constants, call, facts)
                print(f"    {work_text(cell):52} {us:8.2f} us, measured {call.us:8.2f}")
    every = [row for rows in calls.values() for row in rows]
    constants = fit([(call, facts) for _, call, facts in every])
    print(f"\nGB10, predicted; nothing ran there. Fitted to both: {constants}")
    print(*prediction_lines(list(predictions(constants, between, every))), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

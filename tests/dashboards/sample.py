"""Reports built by hand, whose figures agree with each other as an analyzer's would.

`SAMPLES` holds one of every kind that a renderer must cope with, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spark_prof.analyzers.breakdown import (
    ComponentRow,
    Copies,
    CopyRow,
    Coverage,
    KernelRow,
    LayerRow,
)
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.finding import Finding, keyed
from spark_prof.analyzers.model import (
    ClockRow,
    CollectiveRow,
    Collectives,
    ModuleRow,
    RankRow,
    Report,
    SlowStep,
)
from spark_prof.analyzers.overhead import Overhead
from spark_prof.analyzers.recorded_run import Gpu, MarkerRow, Run
from spark_prof.analyzers.step_accounting import Books, Spread, Steps

from .filled import filled

_DECODE, _PREFILL, _MIXED = 48, 2, 1
_STEPS = _DECODE + _PREFILL + _MIXED

# Microseconds in one layer and decode step; layer 1 is the slow one.
_IN_LAYER = {
    "norm": 4.0,
    "qkv": 22.0,
    "rope": 3.0,
    "kv_write": 2.0,
    "attention": 18.0,
    "o_proj": 15.0,
    "router": 6.0,
    "experts": 90.0,
}
_LAYERS = {0: 1.0, 1: 1.4, 2: 1.01}
# The same outside the layers.
_OUTSIDE = {"embedding": 3.0, "lm_head": 160.0, "sampler": 25.0, "other": 8.0}
# A prefill step and a mixed step in decode steps.
_PREFILL_WEIGHT, _MIXED_WEIGHT = 12, 3
_WEIGHT = _DECODE + _PREFILL * _PREFILL_WEIGHT + _MIXED * _MIXED_WEIGHT


def _component(name: str, once: float, total: float, places: int) -> ComponentRow:
    return ComponentRow(
        name=name,
        us=once * _WEIGHT,
        share=once / total,
        kernels=_STEPS * places,
        prefill_us=once * _PREFILL * _PREFILL_WEIGHT,
        decode_us=once * _DECODE,
        mixed_us=once * _MIXED * _MIXED_WEIGHT,
        unknown_us=0.0,
        decode_us_per_step=once,
    )


def _books(phase: str, steps: int, kernels_us: float) -> Books:
    overlap, gap, residual = 0.02 * kernels_us, 0.11 * kernels_us, 0.0005 * kernels_us
    copies = 0.01 * kernels_us
    step_us = kernels_us + copies - overlap + gap + residual
    return Books(
        phase=phase,
        steps=steps,
        step_us=step_us,
        kernels_us=kernels_us,
        union_us=kernels_us - 0.9 * overlap,
        copies_us=copies,
        overlap_us=overlap,
        gap_us=gap,
        residual_us=residual,
        engine_us=1.012 * step_us,
    )


def _kernel(name: str, component: str, us: float, total_us: float, **known: str) -> KernelRow:
    return KernelRow(
        name=name,
        calls=_STEPS * 3,
        us=us,
        share=us / total_us,
        component=component,
        engine=known.get("engine", "cuda-core"),
        precision=known.get("precision"),
        evidence=known.get("evidence", "name"),
        conversion=known.get("conversion"),
        decode_us_per_step=us / _WEIGHT,
        decode_calls_per_step=3.0,
    )


def _mixture_of_experts() -> Report:
    factor = sum(_LAYERS.values())
    once = {name: us * factor for name, us in _IN_LAYER.items()} | _OUTSIDE
    total = sum(once.values())
    total_us = total * _WEIGHT
    components = tuple(
        _component(name, us, total, 3 if name in _IN_LAYER else 1) for name, us in once.items()
    )
    layers = tuple(
        LayerRow(layer, name, us * weight * _WEIGHT, _STEPS, "none", us * weight)
        for layer, weight in _LAYERS.items()
        for name, us in _IN_LAYER.items()
    ) + tuple(
        LayerRow(None, name, us * _WEIGHT, _STEPS, "none", us) for name, us in _OUTSIDE.items()
    )
    tensor = {"engine": "tensor-core", "evidence": "sass"}
    quantize = _kernel(
        "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*, float)",
        "experts",
        30 * _WEIGHT,
        total_us,
        conversion="quantize",
    )
    kernels = (
        _kernel(
            "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, false, "
            "4, 2, false>(int4 const*, int4 const*, int4*, int4*, int4 const*, int)",
            "experts",
            once["experts"] * _WEIGHT - quantize.us,
            total_us,
            precision="bf16",
            **tensor,
        ),
        _kernel(
            "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "lm_head", 160 * _WEIGHT, total_us,
            precision="bf16", **tensor,
        ),
        _kernel("kernel_unified_attention_2d", "attention", 18 * factor * _WEIGHT, total_us,
                precision="bf16", **tensor),
        quantize,
        _kernel("void at::native::elementwise_kernel<128, 4>", "other", 8 * _WEIGHT, total_us,
                engine="unknown", evidence="unknown"),
    )  # fmt: skip
    step = _books("decode", _DECODE, total * _DECODE).step_us / _DECODE
    books = (
        _books("all", _STEPS, total_us),
        _books("prefill", _PREFILL, total * _PREFILL * _PREFILL_WEIGHT),
        _books("decode", _DECODE, total * _DECODE),
        _books("mixed", _MIXED, total * _MIXED * _MIXED_WEIGHT),
    )
    return Report(
        run=Run(
            source="moe.bundle",
            model="openai/gpt-oss-20b",
            command="vllm bench latency --model openai/gpt-oss-20b --batch-size 1",
            vllm="0.26.0",
            torch="2.11.0+cu130",
            backend="cupti",
            recorded_at="2026-03-04 10:20:30",
            execution="torch.compile, CUDA graphs",
            state="complete",
            units="kernel",
        ),
        gpu=Gpu("NVIDIA GB10", "12.1", "NVIDIA"),
        steps=Steps(
            count=_STEPS,
            prefill=_PREFILL,
            decode=_DECODE,
            mixed=_MIXED,
            tokens=98,
            scheduled_tokens=1122,
            prompt_tokens=1024,
            decode_us=Spread(step, 1.3 * step, 1.02 * step),
            prefill_us=Spread(12 * step, 12.5 * step, 12.1 * step),
            mixed_us=Spread(3 * step, 3 * step, 3 * step),
            tpot_us=Spread(step, 1.4 * step, 1.03 * step),
            host_gap_us=Spread(0.1 * step, 0.18 * step, 0.11 * step),
        ),
        books=books,
        wall_us=1.06 * books[0].step_us,
        coverage=Coverage(
            1.0, 1 - 8 / total, 0.987, 8.0 * _WEIGHT, 1.0, 0.9, 0.1 - 8 / total, 0.0, 8 / total
        ),
        components=components,
        layers=layers,
        kernels=kernels,
        conversions=Conversions(quantize.us, quantize.share, (quantize,)),
        modules=(
            ModuleRow("experts", "FusedMoE", "Mxfp4MoEMethod", "MarlinExperts", "uint8",
                      "32x5760x1440", 3, 796_262_400),
            ModuleRow("lm_head", "ParallelLMHead", "UnquantizedEmbeddingMethod", "F.linear",
                      "bfloat16", "201088x2880", 1, 1_158_266_880),
        ),
        ranks=(),
        findings=keyed((
            Finding("weight-only-experts", 0.21,
                    "MXFP4 experts run on Marlin, which computes in bf16: the FP4 tensor cores of "
                    "this GPU idle.",
                    "Set VLLM_MXFP4_USE_MARLIN=0 and check that the engine starts."),
            Finding("lm-head-bf16", None, "lm_head reads 1.08 GiB of bf16 weights in every step.",
                    "Try a checkpoint whose lm_head is quantized."),
        )),
        notes=("12 kernel records were lost while the buffers were full.",),
        copies=Copies(books[0].copies_us, 3 << 20, books[0].copies_us / books[0].busy_us, (
            CopyRow("Memcpy HtoD (Pinned -> Device)", "memcpy", 204, 0.9 * books[0].copies_us,
                    3 << 20),
            CopyRow("Memset (Device)", "memset", 51, 0.1 * books[0].copies_us, 0),
        )),
    )  # fmt: skip


def _imported(report: Report) -> Report:
    """A trace of an AMD GPU without phases, whose layers were guessed or are another trace's."""
    whole = replace(report.books[0], engine_us=None)
    step = Spread(5000.0, 6000.0, 5100.0)
    return replace(
        report,
        run=Run("trace.json.gz", "unknown model", "", "", "2.9.0", "imported: kineto",
                "2026-03-04 10:20:30", "", "complete", "kernel"),
        gpu=Gpu("Instinct MI300X", "gfx942", "AMD"),
        steps=Steps(_STEPS, 0, 0, 0, 0, 0, 0, None, None, None, None, Spread(500.0, 900.0, 510.0),
                    _STEPS, step),
        books=(whole, replace(whole, phase="unknown")),
        coverage=replace(
            report.coverage, layer=0.15, component=0.15, proven=0.15, derived=0.0, guessed=0.85,
            unknown=0.0,
        ),
        components=tuple(
            replace(row, prefill_us=0.0, decode_us=0.0, mixed_us=0.0, unknown_us=row.us,
                    decode_us_per_step=0.0)
            for row in report.components
        ),
        modules=(), findings=(), notes=(),
    )  # fmt: skip


def _sums(report: Report) -> Report:
    """A table of kernels that says nothing about when they ran."""
    imported = _imported(report)
    return replace(
        imported,
        run=replace(imported.run, source="kernels.csv", torch="", backend="imported: nsys stats"),
        gpu=Gpu("unknown", None),
        steps=Steps(1, 0, 0, 0, 0, 0, 0, None, None, None, None, None, 1, None),
        books=(), wall_us=None, coverage=report.coverage, layers=(),
        copies=replace(report.copies, share=None),
    )  # fmt: skip


def _deep(report: Report) -> Report:
    """Gives the model 36 layers, of which every second attends to a window and one is slow."""
    rows = [row for row in report.layers if row.layer == 0]
    outside = tuple(row for row in report.layers if row.layer is None)

    def weight(layer: int, component: str) -> float:
        if layer == 17:
            return 1.6
        return 3.0 if component == "attention" and layer % 2 else 1 + 0.001 * layer

    layers = tuple(
        replace(row, layer=layer, us=row.us * weight(layer, row.component))
        for layer in range(36)
        for row in rows
    )
    ranks = (
        RankRow(0, 51, 62e3, 58e3, 5e3, 2e3, 1e3, 40, 3e3),
        RankRow(1, 51, 61e3, 57e3, 6e3, 3e3, 1.1e3, 10, 2e3),
        RankRow(2, 51, 61e3, 57e3, 6e3),
    )
    run = replace(report.run, model="openai/gpt-oss-120b")
    overhead = (
        Overhead(1, 1.0432, 1.0391, 1.0514, 12, 5216.0, 5000.0, 1.0089),
        Overhead(8, 0.998, 0.91, 1.204, 3, 7984.0, 8000.0, 1.0),
    )
    return replace(
        report, run=run, layers=layers + outside, ranks=ranks, collectives=_collectives(),
        overhead=overhead, markers=(MarkerRow("all_reduce", "NCCL", 3700, 2500.0),),
    )  # fmt: skip


def _collectives() -> Collectives:
    """Two ranks of two hosts that wait mostly after layer 17's experts, and one on its own."""
    return Collectives(
        matched=3700,
        unmatched=4,
        steps=50,
        steps_left_out=1,
        wait_us=2500.0,
        transfer_us=1050.0,
        clocks=(
            ClockRow(1, 0, True, 0.4, 0.0, 6.0, 3700, "collectives"),
            ClockRow(2, 0, False, -5321.0, 1.5, 9.0, 51, "scheduler"),
            ClockRow(3, 0, False, None, None, None, 0, "none"),
        ),
        items=(
            CollectiveRow("all_reduce", "experts", 17, 50, 2000.0, 400.0),
            CollectiveRow("all_reduce", "o_proj", 0, 50, 480.0, 600.0),
            CollectiveRow("all_gather", "lm_head", None, 50, 20.0, 50.0),
        ),
        slow_steps=(SlowStep(3, 0, 0, 1, 90.0, 60.0), SlowStep(4, 1, 0, None, 0.0, 0.5)),
        notes=("Not on every rank of the group, so left out: 1 step.",),
    )


def _almost_empty() -> Report:
    """A trace that somebody stopped in its first prefill step, on a GPU that it doesn't name."""
    kernels_us = 420.0
    return Report(
        run=Run("stopped.json.gz", "Qwen/Qwen3-0.6B", "", "", "", "kineto", "", "", "interrupted",
                "kernel"),
        gpu=Gpu("unknown GPU", None),
        steps=Steps(1, 1, 0, 0, 0, 16, 16, None, None, None, None, None),
        books=(Books("all", 1, 500.0, kernels_us, kernels_us, 0.0, 0.0, 80.0, 0.0, None),
               Books("prefill", 1, 500.0, kernels_us, kernels_us, 0.0, 0.0, 80.0, 0.0, None)),
        wall_us=500.0,
        coverage=Coverage(0.0, 0.0, 0.0, kernels_us, 0.0, 0.0, 0.0, 0.0, 1.0),
        components=(ComponentRow("other", kernels_us, 1.0, 7, kernels_us, 0.0, 0.0, 0.0, 0.0),),
        layers=(),
        kernels=(KernelRow("k", 7, kernels_us, 1.0, "other", "unknown", None, "unknown", None),),
        conversions=Conversions(0.0, 0.0, ()),
        modules=(),
        ranks=(),
        findings=(),
        notes=("The recording has no layer ranges.",),
    )  # fmt: skip


def _nothing() -> Report:
    """A recording in which no step was found at all, with figures that don't exist."""
    nan = float("nan")
    return replace(
        _almost_empty(),
        steps=Steps(0, 0, 0, 0, 0, 0, 0, Spread(nan, nan, nan), None, None, None, None),
        books=(),
        wall_us=0.0,
        coverage=Coverage(nan, nan, nan, 0.0, nan, nan, nan, nan, nan),
        components=(),
        kernels=(),
        notes=(),
    )


def _cpu(report: Report) -> Report:
    """The same model on vLLM's CPU engine, where the rows are operators."""
    kernels = tuple(
        replace(row, name=f"aten::op_{index}", engine="unknown", precision=None, evidence="unknown")
        for index, row in enumerate(report.kernels)
    )
    return replace(
        report,
        run=replace(report.run, units="op", backend="torch", execution="eager"),
        gpu=Gpu("AMD EPYC 9654 96-Core Processor", None),
        kernels=kernels,
        conversions=Conversions(0.0, 0.0, ()),
        copies=Copies(),
        books=tuple(
            replace(entry, copies_us=0.0, step_us=entry.step_us - entry.copies_us)
            for entry in report.books
        ),
        modules=(),
        findings=(),
    )


HOSTILE_NAME = (
    "<script>alert(1)</script></title></style>|`a`\n# b\r\x1b[31mred\x1b]0;owned\x07\x9b2J"
    "\u202eevil\ud800 [link](javascript:alert(1)) <img src=x onerror=alert(1)> ${x} \\| @you"
)


def _hostile(report: Report) -> Report:
    """The same figures under names that try to break out of every format."""
    bad, endless = HOSTILE_NAME, HOSTILE_NAME + "x" * 5000
    spoiled = tuple(
        replace(row, name=endless, component=bad, engine=bad, precision=bad, evidence=bad,
                conversion=bad)
        for row in report.kernels
    )  # fmt: skip
    return replace(
        report,
        run=replace(report.run, source=endless, model=bad, command=endless, vllm=bad, torch=bad,
                    backend=bad, recorded_at=bad, execution=bad, state=bad),
        gpu=Gpu(bad, bad),
        books=(replace(report.books[0], phase=bad), *report.books),
        components=(replace(report.components[0], name=bad), *report.components[1:]),
        layers=(replace(report.layers[0], component=bad), *report.layers[1:]),
        kernels=spoiled,
        conversions=replace(report.conversions, items=spoiled),
        copies=Copies(1.0, 1, 1.0, (CopyRow(endless, bad, 1, 1.0, 1),)),
        modules=(ModuleRow(bad, endless, bad, endless, bad, bad, 1, 1),),
        findings=(Finding(bad, 1.0, endless, bad, key=bad),),
        notes=(endless, bad),
        ranks=(RankRow(0, 1, 1.0, 1.0, 0.0), RankRow(1, 1, 1.0, 1.0, 0.0)),
        collectives=Collectives(
            items=(CollectiveRow(endless, bad, 1, 1, 1.0, 1.0),), notes=(endless,)
        ),
    )  # fmt: skip


_FULL = _mixture_of_experts()

SAMPLES: Mapping[str, Report] = {
    "mixture_of_experts": _FULL,
    "deep": _deep(_FULL),
    "imported": _imported(_FULL),
    "sums": _sums(_FULL),
    "cpu": _cpu(_FULL),
    "almost_empty": _almost_empty(),
    "nothing": _nothing(),
    "hostile": _hostile(_FULL),
    "filled": filled(),
    "filled_with_hostile_text": filled(HOSTILE_NAME),
}

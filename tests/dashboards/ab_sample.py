"""Results of `spark-prof ab` built by hand, whose figures agree with each other.

`AB_SAMPLES` holds one of every kind that a renderer must cope with, by name.
"""

from __future__ import annotations

from dataclasses import replace

from spark_prof.ab.accuracy_gate import GateBounds, GateVerdict, LayerError, LogitFigures, Text
from spark_prof.ab.result import (
    AARun,
    AbOutcome,
    Gate,
    Range,
    RankSwaps,
    Recording,
    RunConditions,
    Seconds,
    SideComparison,
    SideCosts,
    SideFacts,
    SwappedModule,
    with_detectable,
)
from spark_prof.ab.statistics import AATest, Estimate, Interval
from spark_prof.ab.timed_steps import Dropped
from spark_prof.analyzers.comparing.swap_attribution import (
    FOR_THE_HOST,
    Attribution,
    ComponentGain,
    KernelGain,
    LayerGain,
    LayerProof,
    SideSteps,
)

from .filled import filled_as
from .sample import HOSTILE_NAME

_LAYERS = 4
_METHOD = "paired bootstrap over 40 quads, 10,000 resamples"
# us in a step of a and of b, and whether a swap changes it.
_COMPONENTS = {
    "embedding": (4.0, 4.0, False),
    "norm": (80.0, 80.4, False),
    "qkv": (240.0, 239.2, False),
    "attention": (400.0, 401.2, False),
    "router": (160.0, 60.0, True),
    "experts": (1280.0, 704.0, True),
    "lm_head": (420.0, 420.4, False),
    "sampler": (90.0, 89.8, False),
    FOR_THE_HOST: (26.0, 26.0, False),
}
_NEW = "spark_prof_moe_gate_up<MxFp4, 2880>"
_OLD = "void marlin_moe_wna16::Marlin<1125899906909960l, 256, 1, 8, 8, false, 4, 2, false>"


def gain_of(a_us: float, b_us: float, half: float, dropped: tuple[Dropped, ...] = ()) -> Estimate:
    """What 40 quads say whose gain is known to `half`."""
    gain = a_us / b_us
    return Estimate(
        a_us,
        b_us,
        Interval(gain, gain - half, gain + half),
        Interval(a_us - b_us, a_us - b_us - half * b_us, a_us - b_us + half * b_us),
        detectable=1.4 * half,
        quads=40 - len(dropped),
        steps=4 * 14 * (40 - len(dropped)),
        dropped=dropped,
        method=_METHOD,
        missing="",
    )


def _attribution() -> Attribution:
    rows = tuple(
        ComponentGain(name, a, b, a - b, 0.6, a / 20, b / 20, 2.0, 2.0, touched)
        for name, (a, b, touched) in _COMPONENTS.items()
    )
    explained = sum(row.saved_us for row in rows)
    a, b = sum(row.a_us for row in rows), sum(row.b_us for row in rows)
    inside = [(n, c) for n, c in _COMPONENTS.items() if n in ("norm", "qkv", "router", "experts")]
    layers = tuple(
        LayerGain(n, name, x / _LAYERS, y / _LAYERS, (x - y) / _LAYERS, 0.2, 1.0, 1.0, touched)
        for n in range(_LAYERS)
        for name, (x, y, touched) in inside
    )
    kernels = (
        KernelGain(_OLD, "experts", 8.0, 0.0, 1280.0, 0.0, 1280.0, 0.4, True),
        KernelGain(_NEW, "experts", 0.0, 4.0, 0.0, 704.0, -704.0, 0.3, True),
        KernelGain("topk_softmax<float, 8>", "router", 4.0, 0.0, 100.0, 0.0, 100.0, 0.2, True),
    )
    proofs = tuple(
        LayerProof("b", "moe", layer, "experts", 1, "ran", (_NEW,), (), "")
        for layer in range(_LAYERS)
    )
    return Attribution(
        batch_size=1,
        a=SideSteps(100, a + 240.0, a, a, 180.0, 60.0, 12.0, 512.0),
        b=SideSteps(100, b + 200.0, b, b - 2.0, 140.0, 48.0, 9.0, 512.0),
        tracing_us=1.33,
        gain_us=explained + 2.0,
        explained_us=explained,
        residual_us=2.0,
        residual_share=2.0 / (explained + 2.0),
        components=rows,
        layers=layers,
        kernels=kernels,
        proofs=proofs,
        moved=(),
        appeared=(),
        vanished=(),
        notes=(),
    )


def _modules(state: str = "live", why: str = "", kernel: str = "spark_prof") -> tuple[RankSwaps]:
    swaps = tuple(
        SwappedModule(
            "moe",
            f"model.layers.{layer}.mlp.experts",
            kernel,
            "b",
            "live" if state == "live" else "fell back",
            why,
            "kept" if state == "live" else "",
            100 << 20 if state == "live" else 0,
            "MXFP4 experts as they are, tuned on sm_90a" if state == "live" else "",
            {"a": 0, "b": 12},
        )
        for layer in range(_LAYERS)
    )
    seconds = Seconds(1.2, 0.4, {"a": 8.0, "b": 8.4, "a2": 8.1})
    return (RankSwaps(0, swaps, ("a", "b", "a2"), {"a": 35, "b": 35, "a2": 35}, seconds, {}),)


_BOUNDS = GateBounds(0.99, 0.01, 0.1, 0.2, "bfloat16 rounding through 4 layers", 0.1)
_FIGURES = LogitFigures(2048, 0, 0.9985, 4, 1.0, 0.00021, 0.0034, 0.041)
_FLOOR = LogitFigures(2048, 0, 0.999, 4, 1.0, 0.00018, 0.0029, 0.038)
_SAME = LogitFigures(2048, 0, 1.0, 4, 1.0, 0.0, 0.0, 0.0)
_ERRORS = tuple(
    LayerError(f"model.layers.{layer}.mlp.experts", "moe", "kept", 0.002 + layer / 1e4, 2**-6, True)
    for layer in range(_LAYERS)
)
_PASSED = GateVerdict(True, "kept", (), (), _FIGURES, _FLOOR, _BOUNDS, _ERRORS)

FASTER = AbOutcome(
    model="openai/gpt-oss-20b",
    mode="one engine",
    mode_why="the sides differ in swaps only",
    command=("spark-prof", "ab", "--b", "moe=spark_prof", "--", "vllm", "serve", "gpt-oss-20b"),
    taken="2026-11-21T18:00:00+00:00",
    sides=(
        SideFacts("a", "stock", costs=SideCosts(41.0, None, 8.0, 35, 0, 40 << 30)),
        SideFacts(
            "b",
            "moe=spark_prof",
            "moe=spark_prof",
            ("--model", "gpt-oss-20b", "--max-num-seqs", "16"),
            {"VLLM_USE_V2_MODEL_RUNNER": "1"},
            costs=SideCosts(41.0, 1.2, 8.4, 35, 400 << 20, 40 << 30),
        ),
    ),
    machine=RunConditions(
        "NVIDIA H100 80GB HBM3",
        1,
        "x86_64",
        "580.159.04",
        Range(1980.0, 1980.0),
        Range(2619.0, 2619.0),
        Range(41.0, 55.0),
        Range(280.0, 410.0),
    ),
    versions={"spark_prof": "0.1", "vllm": "0.26.0", "torch": "2.11.0", "python": "3.11.9"},
    swaps=_modules(),
    gates=(Gate(1, _PASSED), Gate(8, _PASSED)),
    aa=(
        AARun(
            1,
            AATest(
                replace(gain_of(2700.0, 2700.54, 0.0008)),
                True,
                0.001,
                "a against itself: 0.9998 (95 % 0.9990 to 1.0006), no effect",
            ),
        ),
    ),
    runs=(
        SideComparison("decode", 1, 128, gain_of(2700.0, 2023.0, 0.0016)),
        SideComparison(
            "decode",
            8,
            128,
            gain_of(
                4100.0,
                3610.0,
                0.003,
                (Dropped(3, "clocks of the sides 1.4 % apart"), Dropped(4, "a step is missing")),
            ),
        ),
        SideComparison("decode", 16, 128, gain_of(5200.0, 5202.0, 0.002)),
        SideComparison("prefill", 1, 1024, gain_of(21_000.0, 21_700.0, 0.004)),
    ),
    attributions=(_attribution(),),
    recordings=(Recording("a", 1, "recordings/a-1"), Recording("b", 1, "recordings/b-1")),
    finished=True,
)
"""A replacement that wins with one token and loses where it does not run."""

FASTER = replace(FASTER, runs=tuple(with_detectable(run, FASTER.aa) for run in FASTER.runs))

_FAILED = replace(
    _PASSED,
    passed=False,
    reasons=("KL divergence is 0.31 nats on average, at most 0.01 are allowed", "and another"),
    figures=LogitFigures(2048, 3, 0.61, 4, 0.6105, 0.31, 4.2, 3.9),
    layers=(replace(_ERRORS[0], relative=1.0, passed=False), *_ERRORS[1:]),
)
_LOSS = GateVerdict(
    True,
    "changed",
    (),
    ("the loss is stated, not bounded: 98.1 % agree, KL 0.004 nats on average",),
    LogitFigures(2048, 0, 0.9814, 40, 0.9895, 0.0041, 0.09, 0.6, Text(0.8541, 0.8723, 0.0041)),
    replace(_FLOOR, text=Text(0.8541, 0.8543, 0.0001)),
    GateBounds(0.0, 2.0, None, None, "the loss is stated, not judged", 0.1),
    (),
)
_NULL = SideComparison("decode", 1, 16, gain_of(61_000.0, 61_060.0, 0.006))
_MOVED = replace(
    _attribution(),
    residual_us=60.0,
    residual_share=0.08,
    proofs=(
        *_attribution().proofs[:3],
        LayerProof("b", "moe", 3, "experts", 1, "did not run", (), (_OLD,), "only a's kernels"),
    ),
    moved=(ComponentGain("attention", 400.0, 460.0, -60.0, 0.6, 20.0, 20.0, 4.0, 4.0, False),),
    appeared=(KernelGain("cast_kernel", "norm", 0.0, 4.0, 0.0, 8.0, -8.0, 0.1, False),),
    notes=("the recorded contexts differ by 3 %",),
)

AB_SAMPLES: dict[str, AbOutcome] = {
    "ab_faster": FASTER,
    "ab_gate_failed": replace(FASTER, gates=(Gate(1, _FAILED),), attributions=()),
    "ab_no_effect_no_gpu": replace(
        FASTER,
        machine=RunConditions(processor="x86_64"),
        gates=(Gate(1, replace(_PASSED, figures=_SAME)),),
        aa=(),
        runs=(_NULL,),
        attributions=(),
        recordings=(),
        missing=("clocks are not known: there is no GPU",),
    ),
    "ab_quantized_two_engines": replace(
        FASTER,
        mode="two engines",
        mode_why="the sides differ in vLLM's options",
        gates=(Gate(1, _LOSS),),
        aa=(),
        attributions=(),
    ),
    "ab_moved": replace(FASTER, attributions=(_MOVED,)),
    "ab_not_live": replace(
        FASTER, swaps=_modules("fell back", "too little of the GPU is free"), runs=(_NULL,)
    ),
    "ab_ended_early": replace(
        FASTER,
        gates=(),
        runs=(),
        attributions=(),
        failure="the engine ended: out of memory",
        finished=False,
    ),
    "ab_too_few_quads": replace(
        FASTER,
        runs=(
            SideComparison(
                "decode", 1, 16,
                Estimate(2700.0, 2100.0, None, None, None, 3, 90, (), "", "3 quads count"),
            ),
        ),
        finished=False,
    ),
    "ab_hostile": filled_as(AbOutcome, HOSTILE_NAME),
}  # fmt: skip

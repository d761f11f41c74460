"""Every rule that reads a report: what fires it, its figure and words; what keeps it quiet."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from spark_prof.analyzers.breakdown import Copies, CopyRow, code_of, conflicts_of
from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.classify.code_rows import code_row, opcode_counts
from spark_prof.analyzers.classify.evidence import KernelEvidence
from spark_prof.analyzers.findings.ranking import PAGES, RULES, findings_of
from spark_prof.analyzers.model import ClockRow, Collectives, Lateness, RankRow, Report
from spark_prof.analyzers.recorded_run import Clocks, RecordedGpu
from spark_prof.analyzers.roofline.roofline_rows import (
    Ceilings,
    Roofline,
    RooflinePhase,
    RooflineRow,
)
from spark_prof.analyzers.shapes.shape_rows import ShapeRow, Tile
from spark_prof.analyzers.step_accounting import Spread
from spark_prof.analyzers.token_time import token_times
from tests.analyzers.findings.reports import (
    HEALTHY,
    MARLIN,
    NORM,
    STEP_US,
    STEPS,
    accounts,
    component,
    executed,
    found,
    kernel,
    shape,
    shaped,
)
from tests.rows import each_row

GRAPHS = "torch.compile, CUDA graphs (FULL_AND_PIECEWISE)"
HERE = ClockRow(1, 0, True, 0.0, 0.0, 1.0, 500, "collectives")
THERE = replace(HERE, rank=2, same_host=False)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CUSTOM = "void vllm::cross_device_reduce_1stage<c10::BFloat16, 2>(int)"
QUANTIZE = "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*)"
FP8_GEMM = "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas"
BF16_GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute_kernel__5x_cublas"
SOFTWARE = "F2F.F64.F32 2\nBRA 13\nSTG 1"
NATIVE = "F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C 4\nSTG 1"
OTHER, SCALAR = "LOP3 36\nSTG 1", "FFMA 9\nSTG 1"
MARLIN_CODE = "HMMA.16816.F32.BF16 64\nLOP3 200\nSTG 1"
EMULATED = "HMMA.16816.F32 2\nF2FP.F16.E4M3.UNPACK_B 12\nSTG 1"


def coded(name: str, opcodes: str, architecture: str = "sm_121", suffix: str = "plain") -> Report:
    """The healthy report with one more kernel, 50 us of each step, whose code is known."""
    code = code_row(opcode_counts(opcodes), name=name, architecture=architecture, suffix=suffix,
                    instructions=129, registers=40)  # fmt: skip
    kernels = (*HEALTHY.kernels, kernel(name, "experts", 5000.0))
    evidence = KernelEvidence(codes=[code])
    return replace(HEALTHY, kernels=kernels, machine_code=code_of(evidence, kernels),
                   conflicts=conflicts_of(evidence, kernels))  # fmt: skip


def clocked(clocks: Clocks | None) -> Report:
    return replace(HEALTHY, gpu=replace(HEALTHY.gpu, clocks=clocks))


def parallel(us: float, place: str = "inside", late: tuple[int, ...] = (1,)) -> Report:
    rows = tuple(RankRow(rank, STEPS, 1e5, 9e4, 1e3) for rank in range(4))
    others = tuple(rank for rank in range(4) if rank not in late)
    found = (Lateness(None, place, late, others, 0, 0, STEPS, us, us / 2, us * 1.5),)
    return replace(HEALTHY, ranks=rows, collectives=Collectives(500, steps=STEPS, lateness=found))


def reducing(us: float, *clocks: ClockRow, name: str = ALL_REDUCE) -> Report:
    row = replace(kernel(name, "collective", us * STEPS), calls=10 * STEPS)
    return replace(HEALTHY, kernels=(row,), collectives=Collectives(500, clocks=clocks))


def gapped(between: float, outside: float, execution: str = "", **run: str) -> Report:
    report = replace(HEALTHY, accounts=accounts(between, outside))
    return executed(report, execution or HEALTHY.run.execution, **run)


def decoding(spread: Spread, steps: int = STEPS) -> Report:
    changed = replace(HEALTHY.steps, decode_us=spread, tpot_us=spread, decode=steps)
    return replace(HEALTHY, steps=changed)


def mixing(mixed: int, us: float) -> Report:
    slower = Spread(us, us, us) if mixed else None
    steps = pd.DataFrame({
        "phase": ["decode"] * STEPS + ["mixed"] * mixed, "decode_requests": 1,
        "step_us": [STEP_US] * STEPS + [us] * mixed, "output_requests": 1, "output_tokens": 1,
    })  # fmt: skip
    token = token_times(steps)[0]
    return replace(HEALTHY, steps=replace(HEALTHY.steps, mixed=mixed, mixed_us=slower, token=token))


def copying(us: float, name: str = "Memcpy DtoD (Device -> Device)") -> Report:
    item = CopyRow(name, "memcpy", 48 * STEPS, us * STEPS, 1 << 20)
    return replace(
        HEALTHY, accounts=accounts(copies_us=us), copies=Copies(us * STEPS, 1 << 20, 0.1, (item,))
    )


def sampling(us: float, name: str) -> Report:
    kernels = (kernel(name, "sampler", us * STEPS),)
    return replace(HEALTHY, components=(component("sampler", us),), kernels=kernels)


def floored(report: Report, row: ShapeRow, floor_us: float, limiter: str = "memory") -> Report:
    """The report with a roofline that knows the lower bound of that kernel."""
    known = RooflineRow(
        row.name, row.component, row.calls / STEPS, row.us / STEPS, 1e6, 1e6, 1e6, "", "", False,
        None, None, floor_us / row.us_per_call, floor_us, limiter, None, None,
    )  # fmt: skip
    phase = RooflinePhase("decode", STEPS, 1.0, 1e3, 9e2, 9e2, 1e2, 1e6, 1e6, 1e6, (known,))
    return replace(report, roofline=Roofline(Ceilings("H100"), (phase,), (), ()))


def tiled(rows: int, used: float, precision: str = "bf16", weights: str | None = "fp4") -> Report:
    row = shape(us=20.0, calls=10, tile=Tile("Marlin", rows, 64, 64, rows), rows_used=used)
    known = {"precision": precision} | ({"weights": weights} if weights else {})
    return replace(shaped(row), kernels=(kernel(MARLIN, "o_proj", row.us, **known),))


TINY = shape(NORM, "norm", us=2.0, calls=100, blocks=1, waves=0.01, busy=0.01)
ROUTERS, TINIES = shaped(replace(TINY, component="router")), replace(TINY, component="other")
QUANTIZING = replace(kernel("quant", "mlp", 5.0), conversion="quantize")
FEW = shape(us=20.0, calls=10, blocks=33, waves=0.25, busy=0.25)
TAIL = shape(us=20.0, calls=10, blocks=140, waves=140 / 132, busy=70 / 132)
THIN = shape(us=20.0, calls=10, warps=12, shared=0)
HOT = Clocks(990, 1980, ("temperature (software)", "temperature (hardware)"))
FASTER = replace(HEALTHY.steps, tpot_us=Spread(500.0, 500.0, 500.0))
MIXED_UP = tuple(
    row for n in range(5) for row in coded(f"{BF16_GEMM}{n}", SCALAR).conflicts
)  # fmt: skip
ANY = -1.0
"""A figure that the row does not ask for."""

FIRES: list[tuple[str, Report, float | None, str, str]] = [
    # Rule, report, ms per token, words of the text, words of the fix; a `!` before what is not in.
    # 900 us of kernels in a step, at half the clock.
    ("clocks-held-down", clocked(Clocks(990, 1980, ("power cap",))), 0.45,
     "990 MHz of at most 1,980 MHz, held down by: power cap", "nvidia-smi -pl"),
    ("clocks-held-down", clocked(HOT), ANY, "temperature", "Let it run faster: cool it better."),
    ("clocks-held-down", clocked(Clocks(990, 1980, ("sync boost",))), ANY, "", "nvidia-smi -q"),
    ("straggler-rank", parallel(100.0), 0.1,
     "Within decode steps rank 1 comes to the collectives 100 us later than ranks 0, 2, 3 "
     "(98 % interval 50 to 150 us, 100 steps), which wait for it.", "nvidia-smi"),
    ("straggler-rank", parallel(100.0, "start", (1, 3)), 0.1,
     "Ranks 1, 3 reach the first collective of decode steps 100 us later than ranks 0, 2 ",
     "!nvidia-smi"),
    ("straggler-rank", replace(parallel(100.0), run=replace(HEALTHY.run, units="op")), 0.1,
     "", "!nvidia-smi"),
    ("straggler-rank", replace(parallel(100.0), gpu=RecordedGpu("MI300X", "gfx942", "AMD")), 0.1,
     "", "!nvidia-smi"),
    ("nccl-all-reduce", reducing(200.0, HERE), 0.2, "", "--disable-custom-all-reduce"),
    # 96 kernels in a step, each of which a graph may start a microsecond after the one before.
    ("host-gaps", gapped(396.0, 0.0), 0.3, "300.0 us", ""),
    ("host-gaps", gapped(500.0, 0.0, "torch.compile (VLLM_COMPILE)"), ANY, "",
     "leave out --enforce-eager"),
    ("host-gaps", gapped(500.0, 0.0, "CUDA graphs (PIECEWISE)"), ANY, "",
     "--cudagraph-capture-sizes"),
    # What is set already is not advised.
    ("host-gaps", gapped(500.0, 0.0, GRAPHS), ANY, "", "replay full CUDA graphs already"),
    ("host-gaps", gapped(500.0, 0.0, GRAPHS), ANY, "", "!--cudagraph-capture-sizes"),
    ("scheduler-gaps", gapped(0.0, 200.0), 0.2, "", "!--async-scheduling"),
    ("scheduler-gaps", gapped(0.0, 200.0, GRAPHS), 0.2, "", "--async-scheduling"),
    # Tokens per step make a gap smaller per token.
    ("scheduler-gaps", replace(gapped(0.0, 200.0), steps=FASTER), 0.1, "", ""),
    ("slow-steps", decoding(Spread(1000.0, 5000.0, 1200.0)), 0.2, "", ""),
    # One in eleven steps that decode takes 4 ms longer.
    ("mixed-steps", mixing(10, 5000.0), 4 / 11, "10 of 110 steps", ""),
    # 100 of 2 us, and half a microsecond after each.
    ("small-kernels", replace(shaped(TINY), accounts=accounts(50.0, 0.0)), 0.25, "100 kernels",
     "!enable_qk_norm_rope_fusion"),
    # A host that is late is not for fusion to save.
    ("small-kernels", replace(shaped(TINY), accounts=accounts(500.0, 0.0)), 0.3, "", ""),
    ("small-kernels", ROUTERS, ANY, "", "--moe-backend"),
    ("small-kernels", executed(ROUTERS, HEALTHY.run.execution, vllm="0.11.2"), ANY, "",
     "!--moe-backend"),
    ("small-kernels", executed(ROUTERS, "eager"), ANY, "", "--enforce-eager"),
    ("small-kernels", shaped(TINIES), ANY, "", "!pass_config"),
    ("small-kernels", replace(shaped(TINIES), kernels=(QUANTIZING,)), ANY, "", "fuse_norm_quant"),
    ("copies-in-decode", copying(60.0), 0.06, "4,800 x Memcpy DtoD", "--nvtx"),
    ("copies-in-decode", copying(60.0, "Memcpy HtoD (Pageable -> Device)"), ANY, "", "pin"),
    ("sampler-cost", sampling(80.0, "DeviceRadixSortOnesweepKernel"), 0.08, "",
     "VLLM_USE_FLASHINFER_SAMPLER"),
    ("sampler-cost", sampling(80.0, "cunn_SoftMaxForward"), 0.08, "cunn_SoftMaxForward",
     "logprobs"),
    # 200 us of a step, three quarters of the GPU idle.
    ("grid-smaller-than-gpu", shaped(FEW), 0.15, "Marlin (o_proj): 33", "--linear-backend"),
    *(("grid-smaller-than-gpu", executed(shaped(FEW), HEALTHY.run.execution, vllm=old), ANY, "",
       "!--linear-backend") for old in ("0.11.0", "", "unknown")),
    ("tail-wave", shaped(TAIL), 0.2 * (1 - 70 / 132), "140 blocks in 1.06 waves", ""),
    # 64 rows of FP4 weights in BF16 are 256 operations a byte; an H100 has 326 a byte it reads.
    ("tile-waste", tiled(64, 4.0), 0.2 * (60 / 64) * 256 / 326, "4 of 64 rows hold a token", ""),
    ("low-occupancy", floored(shaped(THIN), THIN, 5.0), 0.15,
     "12 warps at a time, limited by registers", ""),
    ("software-fp4-conversion", coded(QUANTIZE, SOFTWARE), 0.05, "F2F.F64.F32",
     "TORCH_CUDA_ARCH_LIST=12.0f"),
    ("plain-architecture-build", coded(QUANTIZE, OTHER, "sm_100"), 0.05, "(sm_100)", ""),
    ("emulated-fp8", coded(FP8_GEMM, EMULATED, "sm_90"), None, "mma.sync", ""),
    ("evidence-conflict", coded(BF16_GEMM, SCALAR), None,
     "tensor-core bf16, its machine code cuda-core", ""),
    ("evidence-conflict", replace(coded(BF16_GEMM, SCALAR), conflicts=MIXED_UP), None,
     "and 2 more", ""),
]  # fmt: skip


@each_row(("rule", "report", "ms", "text", "fix"), FIRES)
def test_it_fires(rule: str, report: Report, ms: float | None, text: str, fix: str) -> None:
    [finding] = found(report, rule)
    assert (finding.id, PAGES[rule] != "") == (rule, True)
    if ms != ANY:
        assert finding.ms_per_token == (ms if ms is None else pytest.approx(ms, rel=0.01))
    assert text in finding.text
    assert (fix[1:] not in finding.fix) if fix.startswith("!") else (fix in finding.fix)
    assert finding.text
    assert finding.fix
    assert finding.evidence


LATE = gapped(500.0, 500.0)
EAGER, ON_CPU = executed(LATE, "eager"), executed(LATE, GRAPHS, units="op")
TOO_FEW = replace(LATE, steps=replace(LATE.steps, decode=7))
FULL = shape(us=20.0, calls=10, blocks=1000, waves=1000 / 132, busy=0.95)
GRIDS = [
    shape(us=20.0, calls=10),  # all have a block
    shape(us=4.0, calls=50, blocks=33, busy=0.25),  # too short to be more than its start
    shape(us=20.0, calls=1, blocks=33, busy=0.25),  # too rare
    shape(NORM, "norm", us=20.0, calls=10, blocks=1, busy=0.01),  # no product
    replace(FEW, busy=None, waves=None, occupancy=None),  # the GPU is not known
]

QUIET: list[tuple[str, Report]] = [
    # Values beside a threshold are planted in test_thresholds.py.
    ("clocks-held-down", clocked(None)),
    ("clocks-held-down", clocked(Clocks(990, 1980, ()))),  # as fast as it is under that load
    ("clocks-held-down", clocked(Clocks(990, None, ("power cap",)))),
    ("straggler-rank", replace(parallel(10.0), collectives=Collectives(50, steps=10))),
    ("nccl-all-reduce", reducing(200.0, HERE, THERE)),  # between hosts there is nothing else
    ("nccl-all-reduce", reducing(200.0)),  # nothing tells that there is one host
    ("nccl-all-reduce", reducing(200.0, HERE, name=CUSTOM)),
    # What a graph needs between its kernels.
    *(("host-gaps", gapped(between, 0.0)) for between in (0.0, 96.0, 140.0)),
    # Of an eager run and of a CPU another rule speaks.
    *((rule, report) for rule in ("host-gaps", "scheduler-gaps")
      for report in (EAGER, ON_CPU, TOO_FEW, replace(LATE, accounts=()))),
    ("slow-steps", decoding(Spread(1000.0, 5000.0, 900.0))),
    ("mixed-steps", mixing(0, 0.0)),
    ("small-kernels", shaped(shape(NORM, "norm", us=3.5, calls=100))),  # not small
    ("copies-in-decode", replace(copying(60.0), copies=Copies())),
    ("copies-in-decode", replace(copying(60.0), accounts=())),
    ("sampler-cost", executed(sampling(80.0, "aten::sort"), "", units="op")),
    *((rule, shaped(row)) for row in GRIDS for rule in ("grid-smaller-than-gpu", "tail-wave")),
    ("grid-smaller-than-gpu", shaped(TAIL)),
    ("tail-wave", shaped(FULL)),
    ("tile-waste", tiled(64, 4.0, weights=None)),  # weights of two bytes are read long enough
    ("tile-waste", tiled(64, 4.0, precision="fp4")),  # no such peak on an H100
    ("tile-waste", replace(tiled(64, 4.0), gpu=RecordedGpu("some GPU", None))),
    ("low-occupancy", shaped(THIN)),  # nobody knows what it should take
    ("low-occupancy", floored(shaped(THIN), THIN, 5.0, "arithmetic")),
    # Much is fetched ahead; many warps; the grid is what is wrong.
    ("low-occupancy", floored(shaped(replace(THIN, shared_bytes=200_000)), THIN, 5.0)),
    ("low-occupancy", floored(shaped(shape(us=20.0, calls=10, warps=48, shared=0)), THIN, 5.0)),
    ("low-occupancy", floored(shaped(replace(THIN, busy=0.2)), THIN, 5.0)),
    *((rule.id, coded(NORM, SCALAR)) for rule in RULES),
    # Hopper has no conversion to FP4 in any build.
    *(("software-fp4-conversion", coded(*given)) for given in (
        (QUANTIZE, NATIVE), (QUANTIZE, OTHER), (QUANTIZE, SOFTWARE, "sm_90"),
        (QUANTIZE, SOFTWARE, ""), (NORM, SOFTWARE), (MARLIN, SOFTWARE))),
    # Marlin unpacks FP4 to BF16 by its design, on any architecture.
    *(("plain-architecture-build", coded(*given)) for given in (
        (QUANTIZE, OTHER, "sm_120", "f"), (QUANTIZE, OTHER, "sm_121", "a"),
        (QUANTIZE, OTHER, "sm_121", ""), (QUANTIZE, OTHER, "sm_90"), (QUANTIZE, NATIVE, "sm_120"),
        (QUANTIZE, SOFTWARE, "sm_120"), (MARLIN, MARLIN_CODE, "sm_120"), (NORM, OTHER, "sm_120"))),
    ("evidence-conflict", coded(FP8_GEMM, EMULATED, "sm_90")),
    ("emulated-fp8", coded(FP8_GEMM, "QGMMA.64x64x32.F32.E4M3.E4M3 9\nSTG 1", "sm_90")),
    ("emulated-fp8", coded(FP8_GEMM, "HMMA.16816.F32 9\nSTG 1", "sm_90")),
    ("evidence-conflict", coded(BF16_GEMM, MARLIN_CODE)),
    ("evidence-conflict", coded(MARLIN, MARLIN_CODE)),
]  # fmt: skip


@each_row(("rule", "report"), QUIET)
def test_it_is_quiet(rule: str, report: Report) -> None:
    assert found(report, rule) == []


def test_a_healthy_run_and_one_without_decode_steps_have_no_findings() -> None:
    assert findings_of(HEALTHY) == ()
    none = replace(HEALTHY.steps, decode=0, decode_us=None, tpot_us=None)
    report = replace(shaped(shape(busy=0.3, blocks=40)), steps=none, accounts=())
    assert findings_of(report) == ()


def test_the_evidence_says_what_slows_the_host_beside() -> None:
    [imported] = found(gapped(0.0, 200.0, GRAPHS, backend="imported: kineto"), "scheduler-gaps")
    [recorded] = found(gapped(0.0, 200.0), "scheduler-gaps")
    assert any("slows the host" in line for line in imported.evidence)
    assert not any("slows" in line for line in recorded.evidence)


def test_every_rule_has_an_id_of_its_own() -> None:
    assert [rule.id for rule in RULES] == list(dict.fromkeys(rule.id for rule in RULES))


@each_row(
    ("name", "short"),
    [
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<2> > >(P)",
         "flash::FlashAttnFwdSm90"),
        ("void cutlass::device_kernel<128, float>(P)", "cutlass::device_kernel"),
        ("void cub::CUB_300001_SM_750_800_860_890_900_1000::detail::radix_sort::Histogram()",
         "radix_sort::Histogram"),
        ("", ""),
    ],
)  # fmt: skip
def test_how_a_sentence_names_a_kernel(name: str, short: str) -> None:
    assert short_name(name) == short
    for long in ("void cutlass::device_kernel<" + "x" * 5000 + ">(P)", "y" * 5000):
        assert len(short_name(long)) == 60

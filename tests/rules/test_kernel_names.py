"""The names in tests/data/kernel-names.csv get the labels that were written down for them by hand.

The names are real: of recorded traces, of the machine code in vLLM's wheel, and of profiles that
people published. Where `why` says sass, the engine was read from the wheel's machine code. An empty
cell means that the name does not tell.

The rule table against its own examples, hostile names, and recorded traces.

Every kernel that the project compiles is known by its name.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
import time
from pathlib import Path

import pytest

from spark_prof.analyzers.classify.classifier import classify, find_rule, is_gemm, split_name
from spark_prof.rules.kernel_names import NAME_LIMIT, RULES, KernelRule
from spark_prof.vocabulary import (
    COMPONENTS,
    CONVERSIONS,
    ENGINES,
    EVIDENCE,
    PRECISIONS,
    WEIGHTS,
)
from tests.rows import each_row

FILE = Path(__file__).resolve().parents[1] / "data/kernel-names.csv"


LABELS = ("component", "engine", "precision", "weights", "conversion", "fused", "load_time")

with FILE.open(newline="") as stream:
    KNOWN = list(csv.DictReader(stream))


@each_row("known", KNOWN)
def test_label_is_the_one_that_was_written_down(known: dict[str, str]) -> None:
    label, rule = classify(known["name"]), find_rule(known["name"])
    found = (
        *(label.component, label.engine, label.precision, label.weights, label.conversion),
        rule.fused_conversion if rule else None,
        "yes" if rule and rule.load_time else None,
    )
    assert tuple(word or "" for word in found) == tuple(known[name] for name in LABELS)
    assert known["source"]
    assert known["why"]


def test_what_a_sass_row_says_is_what_the_instructions_say() -> None:
    """Rows that quote the wheel's machine code: opcodes of tensor cores or their absence."""
    formats = {"QMMA": "fp8", "QGMMA": "fp8", "OMMA": "fp4", "IMMA": "int8", "IGMMA": "int8"}
    assert len({row["name"] for row in KNOWN}) == len(KNOWN) >= 300
    for row in KNOWN:
        _, quoted, opcodes = row["why"].partition("sass ")
        if not quoted:
            continue
        opcode = opcodes.split()[0].partition(".")[0].rstrip(",;").removeprefix("UTC")
        assert row["engine"] == ("tensor-core" if opcode.endswith("MMA") else "cuda-core"), row
        if row["precision"] and opcode in formats:
            assert row["precision"] == formats[opcode], row


TRACES = Path(__file__).resolve().parents[2] / "../shared/traces"

needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the recorded traces (../shared/traces) are not on this machine"
)

GRAPH = "h100_vllm026_gptoss20b_mxfp4_graph_bs1.json.gz"
EAGER = "h100_vllm026_gptoss20b_mxfp4_eager_modhooks_bs1.json.gz"
B200 = "b200_vllm_eager_tp8_rank0.json.gz"


@each_row("rule", RULES)
def test_a_row_knows_its_example_in_the_words_of_the_vocabulary(rule: KernelRule) -> None:
    assert find_rule(rule.example) is rule
    assert [other.family for other in RULES].count(rule.family) == 1
    label = classify(rule.example)
    assert label.engine in ENGINES
    assert label.evidence in EVIDENCE
    assert label.component in (None, *COMPONENTS)
    assert label.precision in (None, *PRECISIONS)
    assert label.weights in (None, *WEIGHTS)
    assert {label.conversion, rule.fused_conversion} <= {None, *CONVERSIONS}
    assert (label.evidence == "unknown") == (label.engine == "unknown")
    assert is_gemm(rule.example) == rule.gemm


@each_row(
    ("name", "base"),
    [
        ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(long, int)", "vllm::rms_norm_kernel"),
        ("std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
         "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
         "vllm::fused_add_rms_norm_kernel"),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int>(T13)",
         "internal::gemvx::kernel"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int*)",
         "multimem_all_reduce_kernel"),
        ("void at::native::<unnamed>::CatArrayBatchedCopy<int>(T1 *)",
         "at::native::CatArrayBatchedCopy"),
        ("void unnamed>::CatArrayBatchedCopy_vectorized<unnamed>::OpaqueType<2>, 3>(char *)",
         "CatArrayBatchedCopy_vectorized"),
        ("void at::native::reduce_kernel<512, at::f()::{lambda(int)#1}, (a->b), (1 < 2)>(int)",
         "at::native::reduce_kernel"),
        ("_ZN4vllm15rms_norm_kernelIN3c108BFloat16ELi8EEEvPT_", "vllm::rms_norm_kernel"),
        ("_ZN2at6native12_GLOBAL__N_119CatArrayBatchedCopyIfEEvv",
         "at::native::CatArrayBatchedCopy"),
        ("_Z20gemv2T_kernel_val_xxIfEvv", "gemv2T_kernel_val_xx"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
        ("[CUDA memcpy Host-to-Device]", "CUDA memcpy Host-to-Device"),
        ("Memset (Device)", "Memset"),
        ("aten::mm", "aten::mm"),
        ("_C::cpu_fused_moe", "_C::cpu_fused_moe"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1",
         "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1"),
        ("", ""),
    ],
)  # fmt: skip
def test_base_name(name: str, base: str) -> None:
    assert split_name(name)[0] == base


HOSTILE = [
    *("<>([{}])_Z19:a \n\0é"),
    *("_ZN", "_ZN1a", "_ZN9999", "_ZN1aI1f", "Memcpy ", "unnamed>::", "<(", "a<", "->", "::"),
    *("act_mul_", "rms_norm_", "_xmma_gemm_", "_xmma_fprop_", "fused_qk_norm_", "TopK", "routing"),
    *("allspark::gemm", "kernel_cutlass_kernel_BlockScaled", "flash_fwd_", "gemm_half_q_half_"),
    *("void Kernel2<tensorop_", "device_kernel<GroupProblemShape", "direct_copy_kernel_cuda"),
    *("triton_red_fused_embedding", "bmm_E2m1_", "nvjet_", "aten::_weight_int_mm", "quantize_"),
    *("int8", "e4m3", "1125899906909960", "allreduce", "a::allreduce", "deep_ep::dispatch"),
    *("device_kernel<PrepackedLayoutBTemplate<", "MMA_64x64x16_", "at::native::", "rope_quant_"),
]


@each_row("piece", HOSTILE)
@each_row("start", ["", "void cutlass::Kernel2<", "triton_red_fused", "_ZN1a1bI"])
def test_hostile_names_end_soon(piece: str, start: str) -> None:
    name = start + piece * (1_000_000 // len(piece))
    began = time.process_time()
    classify(name)
    is_gemm(name)
    assert len(split_name(name)[0]) <= NAME_LIMIT
    assert time.process_time() - began < 5


def kernel_times(file: Path) -> dict[str, float]:
    """Summed microseconds of each kernel and copy of a Kineto trace, by name."""
    with gzip.open(file) as stream:
        events = json.load(stream)["traceEvents"]
    times: dict[str, float] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            times[event["name"]] = times.get(event["name"], 0.0) + event["dur"]
    return times


def share(times: dict[str, float], engine: str) -> float:
    return sum(us for name, us in times.items() if classify(name).engine == engine) / sum(
        times.values()
    )


@needs_traces
@each_row(
    ("file", "most"),
    [
        (f"kineto/{GRAPH}", 0.03),
        (f"kineto/{EAGER}", 0.03),
        (f"kineto/{B200}", 0.1),
        ("nsys/mfu_2gpu_before.sqlite", 0.01),
        ("nsys/mock.sqlite", 0.01),
        ("nsys/h100_2gpu_1s.sqlite", 0.01),  # of FFMA alone
        *((f"nsys_csv_rtx5090/*_{phase}_*.csv", 0.01) for phase in ("decode", "prefill")),
    ],
)
def test_little_time_of_a_trace_is_in_kernels_of_an_unknown_engine(file: str, most: float) -> None:
    (path,) = TRACES.glob(file)
    if path.suffix == ".csv":
        with path.open() as lines:
            times = {row["Name"]: float(row["Total Time (ns)"]) for row in csv.DictReader(lines)}
    else:
        times = nsys_times(path) if path.suffix == ".sqlite" else kernel_times(path)
    assert share(times, "unknown") <= most
    assert "2gpu_1s" not in file or share(times, "tensor-core") == 0


@needs_traces
def test_tensor_cores_have_their_share_of_a_b200_s_time() -> None:
    times = kernel_times(TRACES / "kineto" / B200)
    kernels = {name: us for name, us in times.items() if not name.startswith("Mem")}
    assert share(kernels, "tensor-core") == pytest.approx(0.597, abs=0.002)


def nsys_times(file: Path) -> dict[str, float]:
    database = sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)
    try:
        rows = database.execute(
            'select s.value, sum(k."end" - k.start) from CUPTI_ACTIVITY_KIND_KERNEL k'
            " join StringIds s on s.id = k.demangledName group by 1"
        ).fetchall()
    finally:
        database.close()
    return dict(rows)


CUDA = Path(__file__).resolve().parents[2] / "spark_prof/kernels/cuda"
ENTRY = re.compile(r"^KERNEL .*\n(\w+)\(", re.MULTILINE)


OF_NO_LAYER = ("node.cu", "late.cu")


@each_row("source", sorted(path for path in CUDA.glob("*.cu") if path.name not in OF_NO_LAYER))
def test_each_of_our_kernels_has_a_rule(source: Path) -> None:
    """Those that multiply, by weights.cuh or themselves, do it on tensor cores."""
    text = source.read_text()
    [name] = ENTRY.findall(text)
    rule = find_rule(name)
    assert rule is not None
    assert rule.family.startswith("own-")
    multiplies = " multiply(" in text or " multiply_fp4(" in text
    tensor_cores = multiplies or "multiply_add_16x8x16(" in text
    assert rule.engine == ("tensor-core" if tensor_cores else "cuda-core")
    assert rule.gemm is multiplies

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_prof.analyzers.classify.classifier import classify, find_rule, is_gemm, split_name
from spark_prof.rules.kernel_names import NAME_LIMIT, RULES, Rule
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


@dataclass(frozen=True)
class Known:
    """A name and what is known about it; empty where the name does not tell."""

    name: str
    source: str
    component: str
    engine: str
    precision: str
    weights: str
    conversion: str
    fused: str
    load_time: str
    why: str

    @property
    def labels(self) -> tuple[str, ...]:
        return (
            *(self.component, self.engine, self.precision, self.weights),
            *(self.conversion, self.fused, self.load_time),
        )


def names() -> list[Known]:
    with FILE.open(newline="") as stream:
        return [Known(**row) for row in csv.DictReader(stream)]


@each_row("known", names())
def test_label_is_the_one_that_was_written_down(known: Known) -> None:
    label, rule = classify(known.name), find_rule(known.name)
    found = (
        *(label.component, label.engine, label.precision, label.weights, label.conversion),
        rule.fused_conversion if rule else None,
        "yes" if rule and rule.load_time else None,
    )
    assert tuple(word or "" for word in found) == known.labels


def test_names_are_many_and_distinct() -> None:
    known = names()
    assert len({row.name for row in known}) == len(known) >= 300


@each_row(
    ("column", "words"),
    [
        ("component", COMPONENTS),
        ("engine", ENGINES),
        ("precision", PRECISIONS),
        ("weights", WEIGHTS),
        ("conversion", CONVERSIONS),
        ("fused", CONVERSIONS),
        ("load_time", ("yes",)),
    ],
)
def test_words_are_those_of_the_vocabulary(column: str, words: tuple[str, ...]) -> None:
    assert {getattr(row, column) for row in names()} <= {"", *words}


def test_every_name_says_where_it_was_found_and_why_it_is_so() -> None:
    assert all(row.source and row.why and row.engine for row in names())


def test_what_a_sass_row_says_is_what_the_instructions_say() -> None:
    """Rows that quote the wheel's machine code: opcodes of tensor cores or their absence."""
    formats = {"QMMA": "fp8", "QGMMA": "fp8", "OMMA": "fp4", "IMMA": "int8", "IGMMA": "int8"}
    for row in names():
        _, quoted, opcodes = row.why.partition("sass ")
        if not quoted:
            continue
        opcode = opcodes.split()[0].partition(".")[0].rstrip(",;").removeprefix("UTC")
        assert row.engine == ("tensor-core" if opcode.endswith("MMA") else "cuda-core"), row
        if row.precision and opcode in formats:
            assert row.precision == formats[opcode], row


TRACES = Path(__file__).resolve().parents[2] / "../shared/traces"

needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the recorded traces (../shared/traces) are not on this machine"
)

GRAPH = "h100_vllm026_gptoss20b_mxfp4_graph_bs1.json.gz"
EAGER = "h100_vllm026_gptoss20b_mxfp4_eager_modhooks_bs1.json.gz"
B200 = "b200_vllm_eager_tp8_rank0.json.gz"


class TestRow:
    @each_row("rule", RULES)
    def test_example_meets_its_own_row_first(self, rule: Rule) -> None:
        assert find_rule(rule.example) is rule

    @each_row("rule", RULES)
    def test_label_stays_in_the_vocabulary(self, rule: Rule) -> None:
        label = classify(rule.example)
        assert label.engine in ENGINES
        assert label.evidence in EVIDENCE
        assert label.component is None or label.component in COMPONENTS
        assert label.precision is None or label.precision in PRECISIONS
        assert label.weights is None or label.weights in WEIGHTS
        assert label.conversion is None or label.conversion in CONVERSIONS
        assert rule.fused_conversion is None or rule.fused_conversion in CONVERSIONS
        assert (label.evidence == "unknown") == (label.engine == "unknown")
        assert is_gemm(rule.example) == rule.gemm


def test_families_are_unique() -> None:
    families = [rule.family for rule in RULES]
    assert len(set(families)) == len(families)


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


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("volta_sgemm_128x32_nt", "cuda-core"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_ffma_kernel", "cuda-core"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)", "cuda-core"),
        ("void tensorrt_llm::kernels::quantize_with_block_size<flash::flash_fwd_kernel>(int)",
         "cuda-core"),
        ("void flash::flash_fwd_splitkv_combine_kernel<1>(int)", "cuda-core"),
        ("void cublasLt::splitKreduce_kernel<32, 16>(int)", "cuda-core"),
        ("void vllm::moe_wna16_gemm_kernel<__nv_bfloat16, 4, 1>(int)", "cuda-core"),
        ("void cutlass::device_kernel<something::Else>(int)", "unknown"),
        ("device_kernel", "unknown"),
        ("nvjet_sm100_sss_128x128_32x4_1x1_h_bz_TNT", "unknown"),
        ("void my_own_flash_kernel<float>(int)", "unknown"),
        ("aten::mm", "unknown"),
    ],
)  # fmt: skip
def test_traps(name: str, engine: str) -> None:
    assert classify(name).engine == engine


@each_row(
    ("name", "precision"),
    [
        ("void marlin::Marlin<1125899906909960l, 562949953487106l, 256>(int)", "bf16"),
        ("void marlin::Marlin<1125899906910725l, 562949953487106l, 256>(int)", "fp16"),
        ("void marlin::Marlin<(long)2814749767172868, (long)562949953487106>(int)", "fp8"),
        ("void marlin::Marlin<__half, 562949953487106l, 256>(int)", "fp16"),
        ("void marlin::Marlin<256, 1, 8, 8>(int)", None),
        ("void device_kernel<G<MainloopSm120TmaWarpSpecializedBlockScaled<2>,"
         " cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue4m3_t>, bfloat16_t> >(int)",
         "fp4"),
        ("void device_kernel<G<MainloopSm120TmaWarpSpecializedBlockScaled<2>,"
         " cutlass::float_e2m1_t, cutlass::float_e4m3_t> >(int)",
         None),
        ("void device_kernel<G<MainloopSm90TmaGmma<2>, float, bfloat16_t> >()", None),
        ("bmm_Bfloat16_E2m1E2m1_Fp32_t128x16_dynBatch_sm100f", "fp4"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16_dynBatch_sm100f", "fp8"),
    ],
)  # fmt: skip
def test_precision(name: str, precision: str | None) -> None:
    label = classify(name)
    assert label.engine == "tensor-core"
    assert label.precision == precision


@pytest.mark.parametrize(
    ("name", "component", "conversion"),
    [
        ("aten::_to_copy", None, "cast"),
        ("aten::copy_", "memcpy", None),
        ("_C::cpu_attn_reshape_and_cache", "kv_write", None),
        ("_C::silu_and_mul", None, None),
        ("void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int)", None, "quantize"),
        ("void vllm::silu_mul_cvt_fp16_to_fp4<__nv_bfloat16>(int)", None, None),
        ("void vllm::act_and_mul_kernel<c10::BFloat16>(int)", None, None),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>(int)", None, None),
        ("_nvfp4_quant_dequant_kernel", None, None),
    ],
)
def test_component_and_conversion(name: str, component: str | None, conversion: str | None) -> None:
    label = classify(name)
    assert (label.component, label.conversion) == (component, conversion)


@each_row(
    ("name", "expected"),
    [
        ("aten::addmm", True),
        ("aten::linear", True),
        ("_C::onednn_scaled_mm", True),
        ("mkldnn::_linear_pointwise", True),
        ("aten::add", False),
        ("void cublasLt::splitKreduce_kernel<32, 16>(int)", False),
        ("void flash::flash_fwd_kernel<1>(int)", False),
    ],
)
def test_is_gemm(name: str, expected: bool) -> None:
    assert is_gemm(name) is expected


HOSTILE = [
    *("<>([{}])_Z19:a \n\0é"),
    *("_ZN", "_ZN1a", "_ZN9999", "_ZN1aI1f", "Memcpy ", "unnamed>::", "<(", "a<", "->", "::"),
    *("act_mul_", "rms_norm_", "_xmma_gemm_", "_xmma_fprop_", "fused_qk_norm_", "TopK", "routing"),
    *("allspark::gemm", "kernel_cutlass_kernel_BlockScaled", "flash_fwd_", "gemm_half_q_half_"),
    *("void Kernel2<tensorop_", "device_kernel<GroupProblemShape", "direct_copy_kernel_cuda"),
    *("triton_red_fused_embedding", "bmm_E2m1_", "nvjet_", "aten::_weight_int_mm", "quantize_"),
    *(
        "int8",
        "e4m3",
        "1125899906909960",
        "allreduce",
        "a::allreduce",
        "marlin",
        "deep_ep::dispatch",
    ),
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
@pytest.mark.parametrize(("file", "floor"), [(GRAPH, 0.97), (EAGER, 0.97), (B200, 0.90)])
def test_engine_coverage_of_vllm_traces(file: str, floor: float) -> None:
    times = kernel_times(TRACES / "kineto" / file)
    assert 1 - share(times, "unknown") >= floor


@needs_traces
def test_b200_tensor_core_share_and_components() -> None:
    times = kernel_times(TRACES / "kineto" / B200)
    kernels = {name: us for name, us in times.items() if not name.startswith("Mem")}
    assert share(kernels, "tensor-core") == pytest.approx(0.597, abs=0.002)
    for name in kernels:
        label = classify(name)
        if name.startswith("bmm_"):
            assert (label.engine, label.precision, label.weights) == ("tensor-core", "fp8", "fp4")
            assert (label.component, is_gemm(name)) == ("experts", True)
        elif "flash" in name:
            assert label.engine == "cuda-core"
        elif name.startswith("nvjet"):
            assert (label.engine, label.precision) == ("tensor-core", "bf16")
        elif "reshape_and_cache" in name:
            assert (label.engine, label.component) == ("cuda-core", "kv_write")
        elif "quantize_with_block_size" in name:
            assert (label.engine, label.conversion) == ("cuda-core", "quantize")


@needs_traces
def test_eager_trace_shows_the_components_that_names_can_tell() -> None:
    times = kernel_times(TRACES / "kineto" / EAGER)
    found = {classify(name).component for name in times}
    assert {"experts", "router", "attention", "kv_write", "rope", "norm", "sampler"} <= found


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


@needs_traces
def test_nsys_trace_of_ffma_kernels_has_no_tensor_core_time() -> None:
    times = nsys_times(TRACES / "nsys/h100_2gpu_1s.sqlite")
    assert share(times, "tensor-core") == 0
    assert share(times, "cuda-core") > 0.99


@needs_traces
@pytest.mark.parametrize("file", ["mfu_2gpu_before.sqlite", "mock.sqlite"])
def test_engine_coverage_of_nsys_traces(file: str) -> None:
    assert share(nsys_times(TRACES / "nsys" / file), "unknown") < 0.01


def ncu_kernels() -> Iterator[tuple[str, str, float]]:
    for file in sorted((TRACES / "ncu_rtx5090").glob("*.csv")):
        rows = list(csv.DictReader(file.open()))
        operations = [
            float(row["Metric Value"].replace(",", ""))
            for row in rows
            if row["Metric Name"] == "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
        ]
        yield file.name[:11], rows[0]["Kernel Name"], max(operations)


@needs_traces
def test_agrees_with_the_hardware_counters() -> None:
    kernels = list(ncu_kernels())
    assert len(kernels) == 12
    for file, name, tensor_operations in kernels:
        measured = "tensor-core" if tensor_operations else "cuda-core"
        assert classify(name).engine == measured, file


@needs_traces
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_engine_coverage_of_nsys_summaries(phase: str) -> None:
    (file,) = (TRACES / "nsys_csv_rtx5090").glob(f"*_{phase}_*.csv")
    with file.open() as stream:
        times = {row["Name"]: float(row["Total Time (ns)"]) for row in csv.DictReader(stream)}
    assert share(times, "unknown") < 0.01


CUDA = Path(__file__).resolve().parents[2] / "spark_prof/kernels/cuda"
SOURCES = sorted(CUDA.glob("*.cu"))
ENTRY = re.compile(r"^KERNEL .*\n(\w+)\(", re.MULTILINE)


def test_there_are_sources() -> None:
    assert len(SOURCES) == 4


@each_row("source", SOURCES)
def test_its_kernel_has_a_rule(source: Path) -> None:
    """Those that multiply, in weights.cuh, do it on tensor cores."""
    text = source.read_text()
    [name] = ENTRY.findall(text)
    rule = find_rule(name)
    assert rule is not None
    assert rule.family.startswith("own-")
    multiplies = " multiply(" in text
    assert rule.engine == ("tensor-core" if multiplies else "cuda-core")
    assert rule.gemm is multiplies

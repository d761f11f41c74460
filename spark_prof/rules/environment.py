"""Environment variables that some versions of vLLM do not read, and the flags that took over.

Which variables vLLM 0.24 to 0.33 read stands in `vllm_versions`; here are the older ones, and what
does the same since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_prof.rules.vllm_versions import around, is_listed, reads, releases, span_of_variable

Version = tuple[int, int]
UNKNOWN: Version = (0, 0)
FLAGS_FROM: Version = (0, 22)
"""vLLM 0.22 warns of each older variable with "use --moe-backend" or "use --linear-backend"."""

_OLDER = {
    "moe": "VLLM_USE_FLASHINFER_MOE_FP4=1 with VLLM_FLASHINFER_MOE_BACKEND=throughput",
    "linear": "VLLM_NVFP4_GEMM_BACKEND=flashinfer-cutlass",
}


def version_of(text: str) -> Version:
    """Major and minor number of a version such as 0.26.1.dev3; `UNKNOWN` where there is none.

    0.1.dev1+g0abc is what a build calls itself that found no tag of the release it comes from.
    """
    if re.match(r"v?0\.[01]\.dev", text.strip()):
        return UNKNOWN
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", text.strip())
    return (int(match[1]), int(match[2])) if match else UNKNOWN


def since(text: str, first: Version) -> bool:
    """Whether a version is that one or later; an unknown one is taken as the newest."""
    version = version_of(text)
    return version == UNKNOWN or version >= first


def backend_flag(kind: str, backend: str, vllm: str) -> str:
    """What asks a version of vLLM for a backend such as flashinfer_cutlass; kind: moe or linear."""
    if since(vllm, FLAGS_FROM):
        return f"--{kind}-backend {backend}"
    return _OLDER[kind]


_NEVER: Version = (0, 0)
_MOE = "--moe-backend flashinfer_cutlass"


@dataclass(frozen=True)
class SettingRow:
    """A setting that was made and does nothing, or soon will not."""

    name: str  # of the environment variable
    value: str  # what it was set to; empty where only a log tells
    status: str  # ignored, deprecated or never
    why: str  # since when, and who says so
    instead: str  # what does the same in this vLLM; empty where nothing does


@dataclass(frozen=True)
class RetiredVariable:
    """An environment variable that was vLLM's before 0.24, or never was."""

    name: str
    last: Version  # the last version known to read it; (0, 0) where none ever did
    removed_in: Version  # the first version known not to read it
    instead: str  # the flag that does the same since; empty where nothing does
    source: str  # where that is written
    default: str = ""  # the value that changes nothing, so that losing it does not matter


@dataclass(frozen=True)
class Successor:
    """What does the same as a variable that vLLM lost since 0.24."""

    name: str
    instead: str  # a flag or a variable; empty where nothing does
    default: str = ""  # as in `Variable`


_WARNED = "vLLM 0.22 warns that it will be removed in v0.23"
_ABSENT = "not in vllm/envs.py of 0.24"

VARIABLES: tuple[RetiredVariable, ...] = (
    RetiredVariable("VLLM_USE_FLASHINFER_MOE_FP4", (0, 22), (0, 23), _MOE, _WARNED, "0"),
    RetiredVariable("VLLM_USE_FLASHINFER_MOE_FP8", (0, 22), (0, 23), _MOE, _WARNED, "0"),
    RetiredVariable("VLLM_USE_FLASHINFER_MOE_FP16", (0, 22), (0, 23), _MOE, _WARNED, "0"),
    RetiredVariable("VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", (0, 22), (0, 23),
        "--moe-backend flashinfer_trtllm or flashinfer_cutlass", _WARNED, "0"),
    RetiredVariable("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", (0, 22), (0, 23),
        "--moe-backend flashinfer_trtllm with --quantization_config.moe.activation mxfp8", _WARNED,
        "0"),
    RetiredVariable("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", (0, 22), (0, 23),
        "--moe-backend flashinfer_cutlass with --quantization_config.moe.activation mxfp8", _WARNED,
        "0"),
    RetiredVariable("VLLM_FLASHINFER_MOE_BACKEND", (0, 22), (0, 23),
        "--moe-backend flashinfer_trtllm, flashinfer_cutlass or flashinfer_cutedsl", _WARNED),
    RetiredVariable("VLLM_MXFP4_USE_MARLIN", (0, 22), (0, 23),
        "--moe-backend marlin or --linear-backend marlin", _WARNED, "0"),
    RetiredVariable("VLLM_NVFP4_GEMM_BACKEND", (0, 22), (0, 23),
        "--linear-backend, such as flashinfer_cutlass or marlin", _WARNED),
    RetiredVariable("VLLM_USE_NVFP4_CT_EMULATIONS", (0, 22), (0, 23), "--linear-backend emulation",
        _WARNED, "0"),
    RetiredVariable("VLLM_USE_FBGEMM", (0, 22), (0, 23), "--linear-backend fbgemm", _WARNED, "0"),
    RetiredVariable("VLLM_ATTENTION_BACKEND", (0, 13), (0, 20), "--attention-backend",
        "vLLM 0.13 warns that it will be removed in v0.14; 0.20.2 is reported not to know it"),
    RetiredVariable("VLLM_FLASH_ATTN_VERSION", (0, 13), (0, 24),
        "--attention-config.flash_attn_version",
        _ABSENT),
    RetiredVariable("VLLM_USE_TRTLLM_ATTENTION", (0, 13), (0, 24),
        "--attention-config.use_trtllm_attention", _ABSENT),
    RetiredVariable("VLLM_TORCH_PROFILER_DIR", (0, 13), (0, 24), "--profiler-config", _ABSENT),
    RetiredVariable("VLLM_ALL2ALL_BACKEND", (0, 12), (0, 24), "--all2all-backend", _ABSENT),
    RetiredVariable("VLLM_FUSED_MOE_CHUNK_SIZE", UNKNOWN, (0, 24), "", _ABSENT),
    RetiredVariable("VLLM_MXFP4_BACKEND", _NEVER, _NEVER, "--moe-backend",
        "no release of vLLM reads it; forks do"),
    RetiredVariable("VLLM_USE_B12X_FP4_GEMM", _NEVER, _NEVER, "--linear-backend b12x",
        "no release of vLLM reads it; a branch that was never merged does"),
    RetiredVariable("VLLM_USE_B12X_FP8_GEMM", _NEVER, _NEVER, "--linear-backend b12x",
        "no release of vLLM reads it; a branch that was never merged does"),
    RetiredVariable("VLLM_B12X_MOE_FORCE_A16", _NEVER, _NEVER, "VLLM_B12X_MOE_FP4_FORCE_A16 (0.32)",
        "no release of vLLM reads it; a branch that was never merged does"),
)  # fmt: skip

SUCCESSORS: tuple[Successor, ...] = (
    Successor("VLLM_CI_USE_S3", ""),
    Successor("VLLM_CPU_SGL_KERNEL", "", "0"),
    Successor("VLLM_ENGINE_ITERATION_TIMEOUT_S", ""),
    Successor("VLLM_FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB",
        "--compilation-config.pass_config.fi_allreduce_fusion_max_size_mb"),
    Successor("VLLM_KIMI_K3_GEMM_RS", "VLLM_ENABLE_GEMM_RS", "0"),
    Successor("VLLM_MM_HASHER_ALGORITHM", "--mm-hasher-algorithm", "blake3"),
    Successor("VLLM_NIXL_EP_MAX_NUM_RANKS", "", "32"),
    Successor("VLLM_PLE_CPU_OFFLOAD", "", "1"),
    Successor("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "--prefix-cache-retention-interval"),
    Successor("VLLM_ROCM_AITER_MEGA_MOE_FUSE_SHARED_EXPERTS", ""),
    Successor("VLLM_ROCM_AITER_MLA_DCP_VERIFY", ""),
    Successor("VLLM_ROCM_MONO_DECODE", "--monokernel", "0"),
    Successor("VLLM_ROCM_USE_AITER_FP4_ASM_GEMM", "", "0"),
    Successor("VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4", "VLLM_ROCM_USE_AITER_MOE_SITUV2", "0"),
    Successor("VLLM_ROCM_USE_AITER_PAGED_ATTN", "", "0"),
    Successor("VLLM_TEST_FORCE_FP8_MARLIN", "--linear-backend marlin and --moe-backend marlin",
        "0"),
    Successor("VLLM_TPU_BUCKET_PADDING_GAP", ""),
    Successor("VLLM_TPU_MOST_MODEL_LEN", ""),
    Successor("VLLM_TRITON_ATTN_USE_TD", "VLLM_TRITON_USE_TD"),
    Successor("VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE", ""),
    Successor("VLLM_USE_RAY_COMPILED_DAG_OVERLAP_COMM", "", "0"),
    Successor("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "", "1"),
    Successor("VLLM_USE_RAY_WRAPPED_PP_COMM", "", "1"),
    Successor("VLLM_XPU_ENABLE_XPU_GRAPH", "", "0"),
)  # fmt: skip
"""Each variable that some release read and the newest one does not."""

HARMLESS = frozenset({
    "VLLM_BUILD_COMMIT", "VLLM_BUILD_PIPELINE", "VLLM_BUILD_URL", "VLLM_IMAGE_TAG", "VLLM_VERSION",
    "VLLM_BASE_DIR", "VLLM_FLASH_ATTN_SRC_DIR", "VLLM_COMMIT", "VLLM_USE_V1",
    "VLLM_DOCKER_BUILD_CONTEXT", "VLLM_PYTHON_EXECUTABLE",
})  # fmt: skip
"""What container images leave behind, and the switch to V1, which is all there is now."""

_BY_NAME: Mapping[str, RetiredVariable] = {variable.name: variable for variable in VARIABLES}
_SUCCESSORS: Mapping[str, Successor] = {row.name: row for row in SUCCESSORS}
_PREFIX = "VLLM_"


def setting_rows(
    environment: Mapping[str, str], vllm: str, unknown: Iterable[str], deprecated: Iterable[str]
) -> tuple[SettingRow, ...]:
    """The variables that were set and that this vLLM does not read, or soon will not.

    Without its version only what a log says counts. A variable that vLLM calls unknown, because its
    own list lacks it, and that one of its modules reads all the same, is left out.
    """
    rows: dict[str, SettingRow] = {}
    for name in (*unknown, *deprecated):
        if name not in HARMLESS and not _is_read_unlisted(name, vllm):
            status = "deprecated" if name in deprecated and name not in unknown else "ignored"
            notice = "unknown to it" if status == "ignored" else "to be removed"
            rows[name] = _row(name, environment.get(name, ""), status, f"vLLM's log: {notice}")
    for name, value in environment.items():
        if (
            name not in rows
            and name not in HARMLESS
            and (status_and_reason := _variable_status(name, value, vllm))
        ):
            rows[name] = _row(name, value, *status_and_reason)
    return tuple(rows.values())


def _is_read_unlisted(name: str, vllm: str) -> bool:
    """Whether a module reads a variable that vLLM's own list lacks, so that vLLM warns of it.

    Without a version, what no release ever listed and the newest one reads.
    """
    if version_of(vllm) == UNKNOWN:
        newest = releases()[-1]
        return bool(reads(name, newest)) and not is_listed(name, newest)
    return bool(reads(name, vllm)) and not is_listed(name, vllm)


def is_gone(name: str, vllm: str) -> bool:
    """Whether a vLLM is known not to read a variable that another vLLM does or did.

    is_gone("VLLM_TEST_FORCE_FP8_MARLIN", "0.29.0") is True
    """
    old = _BY_NAME.get(name)
    if old is not None:
        return UNKNOWN < old.removed_in <= version_of(vllm)
    return bool(span_of_variable(name).text) and reads(name, vllm) is False


def _variable_status(name: str, value: str, vllm: str) -> tuple[str, str] | None:
    """The status of a variable with the reason; None where this vLLM reads it, or may."""
    variable = _BY_NAME.get(name)
    if variable is not None:
        return None if value == variable.default else _of_an_old_one(variable, vllm)
    successor = _SUCCESSORS.get(name)
    if not name.startswith(_PREFIX) or (successor and value == successor.default):
        return None
    if reads(name, vllm) is not False:
        return None
    read = releases()
    having = [release for release in read if span_of_variable(name).has(release)]
    if not having:
        why = f"neither vLLM {vllm} nor another release from {read[0]} on reads it"
    elif read.index(having[0]) > read.index(around(vllm)[0]):
        why = f"vLLM {having[0]} is the first release that reads it"
    else:
        why = f"vLLM {having[-1]} is the last release that reads it"
    return "ignored", why


def _of_an_old_one(variable: RetiredVariable, vllm: str) -> tuple[str, str] | None:
    version = version_of(vllm)
    if variable.removed_in == _NEVER:
        return "never", variable.source
    if version != UNKNOWN and version >= variable.removed_in:
        first_without = ".".join(map(str, variable.removed_in))
        return "ignored", f"vLLM {first_without} and later do not read it ({variable.source})"
    if version == variable.last and variable.source == _WARNED:
        return "deprecated", variable.source
    return None


def _row(name: str, value: str, status: str, why: str) -> SettingRow:
    variable = _BY_NAME.get(name) or _SUCCESSORS.get(name)
    return SettingRow(name, value[:200], status, why, variable.instead if variable else "")

"""Environment variables that some versions of vLLM do not read, and the flags that took over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Version = tuple[int, int]
UNKNOWN: Version = (0, 0)
FLAGS_FROM: Version = (0, 22)
"""vLLM 0.22 warns of each older variable with "use --moe-backend" or "use --linear-backend"."""

_OLDER = {
    "moe": "VLLM_USE_FLASHINFER_MOE_FP4=1 with VLLM_FLASHINFER_MOE_BACKEND=throughput",
    "linear": "VLLM_NVFP4_GEMM_BACKEND=flashinfer-cutlass",
}


def version_of(text: str) -> Version:
    """Major and minor number of a version such as 0.26.1.dev3; `UNKNOWN` where there is none."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})", text.strip())
    return (int(found[1]), int(found[2])) if found else UNKNOWN


def since(text: str, first: Version) -> bool:
    """Whether a version is that one or later; an unknown one is taken as the newest."""
    found = version_of(text)
    return found == UNKNOWN or found >= first


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
class Variable:
    """An environment variable that is or was vLLM's."""

    name: str
    last: Version  # the last version known to read it; (0, 0) where none ever did
    gone: Version  # the first version known not to read it
    instead: str  # the flag that does the same since; empty where nothing does
    source: str  # where that is written
    default: str = ""  # the value that changes nothing, so that losing it does not matter


_WARNED = "vLLM 0.22 warns that it will be removed in v0.23"
_ABSENT = "not in vllm/envs.py of 0.26"

VARIABLES: tuple[Variable, ...] = (
    Variable("VLLM_USE_FLASHINFER_MOE_FP4", (0, 22), (0, 23), _MOE, _WARNED, "0"),
    Variable("VLLM_USE_FLASHINFER_MOE_FP8", (0, 22), (0, 23), _MOE, _WARNED, "0"),
    Variable("VLLM_USE_FLASHINFER_MOE_FP16", (0, 22), (0, 23), _MOE, _WARNED, "0"),
    Variable("VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", (0, 22), (0, 23),
        "--moe-backend flashinfer_trtllm or flashinfer_cutlass", _WARNED, "0"),
    Variable("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", (0, 22), (0, 23),
        "--moe-backend flashinfer_trtllm with --quantization_config.moe.activation mxfp8", _WARNED,
        "0"),
    Variable("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", (0, 22), (0, 23),
        "--moe-backend flashinfer_cutlass with --quantization_config.moe.activation mxfp8", _WARNED,
        "0"),
    Variable("VLLM_FLASHINFER_MOE_BACKEND", (0, 22), (0, 23),
        "--moe-backend flashinfer_trtllm, flashinfer_cutlass or flashinfer_cutedsl", _WARNED),
    Variable("VLLM_MXFP4_USE_MARLIN", (0, 22), (0, 23),
        "--moe-backend marlin or --linear-backend marlin", _WARNED, "0"),
    Variable("VLLM_NVFP4_GEMM_BACKEND", (0, 22), (0, 23),
        "--linear-backend, such as flashinfer_cutlass or marlin", _WARNED),
    Variable("VLLM_USE_NVFP4_CT_EMULATIONS", (0, 22), (0, 23), "--linear-backend emulation",
        _WARNED, "0"),
    Variable("VLLM_USE_FBGEMM", (0, 22), (0, 23), "--linear-backend fbgemm", _WARNED, "0"),
    Variable("VLLM_TEST_FORCE_FP8_MARLIN", (0, 26), (0, 32),
        "--linear-backend marlin and --moe-backend marlin", "not in vllm/envs.py of 0.32", "0"),
    Variable("VLLM_ATTENTION_BACKEND", (0, 13), (0, 20), "--attention-backend",
        "vLLM 0.13 warns that it will be removed in v0.14; 0.20.2 is reported not to know it"),
    Variable("VLLM_FLASH_ATTN_VERSION", (0, 13), (0, 26), "--attention-config.flash_attn_version",
        _ABSENT),
    Variable("VLLM_USE_TRTLLM_ATTENTION", (0, 13), (0, 26),
        "--attention-config.use_trtllm_attention", _ABSENT),
    Variable("VLLM_TORCH_PROFILER_DIR", (0, 13), (0, 26), "--profiler-config", _ABSENT),
    Variable("VLLM_ALL2ALL_BACKEND", (0, 12), (0, 26), "--all2all-backend", _ABSENT),
    Variable("VLLM_TRITON_ATTN_USE_TD", (0, 26), (0, 32), "VLLM_TRITON_USE_TD",
        "not in vllm/envs.py of 0.32"),
    Variable("VLLM_CPU_SGL_KERNEL", (0, 26), (0, 32), "", "not in vllm/envs.py of 0.32", "0"),
    Variable("VLLM_MXFP4_BACKEND", _NEVER, _NEVER, "--moe-backend",
        "no release of vLLM reads it; forks do"),
    Variable("VLLM_USE_B12X_FP4_GEMM", _NEVER, _NEVER, "--linear-backend b12x",
        "neither in 0.26 nor in 0.32; a branch that was never merged reads it"),
    Variable("VLLM_USE_B12X_FP8_GEMM", _NEVER, _NEVER, "--linear-backend b12x",
        "neither in 0.26 nor in 0.32; a branch that was never merged reads it"),
    Variable("VLLM_B12X_MOE_FORCE_A16", _NEVER, _NEVER, "VLLM_B12X_MOE_FP4_FORCE_A16 (0.32)",
        "neither in 0.26 nor in 0.32; a branch that was never merged reads it"),
)  # fmt: skip

HARMLESS = frozenset({
    "VLLM_BUILD_COMMIT", "VLLM_BUILD_PIPELINE", "VLLM_BUILD_URL", "VLLM_IMAGE_TAG", "VLLM_VERSION",
    "VLLM_BASE_DIR", "VLLM_FLASH_ATTN_SRC_DIR", "VLLM_COMMIT", "VLLM_USE_V1",
    "VLLM_DOCKER_BUILD_CONTEXT", "VLLM_PYTHON_EXECUTABLE",
})  # fmt: skip
"""What container images leave behind, and the switch to V1, which is all there is now."""

_BY_NAME: Mapping[str, Variable] = {variable.name: variable for variable in VARIABLES}


def setting_rows(
    environment: Mapping[str, str], vllm: str, unknown: Iterable[str], deprecated: Iterable[str]
) -> tuple[SettingRow, ...]:
    """The variables that were set and that this vLLM does not read, or soon will not.

    Without its version only what a log says counts.
    """
    rows: dict[str, SettingRow] = {}
    for name in (*unknown, *deprecated):
        if name not in HARMLESS:
            status = "deprecated" if name in deprecated and name not in unknown else "ignored"
            said = "unknown to it" if status == "ignored" else "to be removed"
            rows[name] = _row(name, environment.get(name, ""), status, f"vLLM's log: {said}")
    version = version_of(vllm)
    for name, value in environment.items():
        known = _BY_NAME.get(name)
        if name in rows or known is None or value == known.default:
            continue
        if known.gone == _NEVER:
            rows[name] = _row(name, value, "never", known.source)
        elif version != UNKNOWN and version >= known.gone:
            gone = ".".join(map(str, known.gone))
            rows[name] = _row(
                name, value, "ignored", f"vLLM {gone} and later do not read it ({known.source})"
            )
        elif version == known.last and known.source == _WARNED:
            rows[name] = _row(name, value, "deprecated", known.source)
    return tuple(rows.values())


def _row(name: str, value: str, status: str, why: str) -> SettingRow:
    known = _BY_NAME.get(name)
    return SettingRow(name, value[:200], status, why, known.instead if known else "")

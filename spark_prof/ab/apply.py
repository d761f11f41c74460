"""What `ab --apply` prints: variables that a shell evaluates, and options that a person reads.

A result is a file that somebody else may have written. What is taken from it alone chooses among
the kernels of this package, of installed packages and of vLLM, by tables of names and shapes. All
else, such as a kernel's file, counts only if the person at the command line types it too.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from spark_prof.ab.result import SideFacts, outcome_of, read_result
from spark_prof.ab.sides import BACKENDS, Side, is_own_or_installed, is_reserved, quoted
from spark_prof.errors import CommandError
from spark_prof.profiler.commands import with_plugin_allowed
from spark_prof.swaps.swap_settings import SWAPS_ENVIRONMENT, Swap, format_swaps, parse_swaps

# No shape takes a path, a dotted name of Python or a URL: those can load code.
_SWITCH = "[01]|[Tt]rue|[Ff]alse"
_NUMBER = r"[0-9]{1,12}(\.[0-9]{1,6})?[kKmMgG]?"
_WORD = "[A-Za-z0-9_-]{1,64}"
_WORDS = f"{_WORD}(,{_WORD}){{0,31}}"

VARIABLES: dict[str, str] = {
    **dict.fromkeys(
        (
            "VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_ALLREDUCE_USE_SYMM_MEM",
            "VLLM_B12X_MOE_FP4_FORCE_A16", "VLLM_BATCH_INVARIANT",
            "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER", "VLLM_CPU_SGL_KERNEL",
            "VLLM_DISABLE_SHARED_EXPERTS_STREAM", "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE",
            "VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_MOE_USE_DEEP_GEMM", "VLLM_MXFP4_USE_MARLIN",
            "VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_TRITON_ATTN_USE_TD", "VLLM_TRITON_USE_TD",
            "VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_USE_DEEP_GEMM", "VLLM_USE_DEEP_GEMM_E8M0",
            "VLLM_USE_FBGEMM", "VLLM_USE_FLASHINFER_MOE_FP16", "VLLM_USE_FLASHINFER_MOE_FP4",
            "VLLM_USE_FLASHINFER_MOE_FP8", "VLLM_USE_FLASHINFER_MOE_INT4",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
            "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", "VLLM_USE_FLASHINFER_SAMPLER",
            "VLLM_USE_FUSED_MOE_GROUPED_TOPK", "VLLM_USE_NCCL_SYMM_MEM",
            "VLLM_USE_NVFP4_CT_EMULATIONS", "VLLM_USE_TRITON_AWQ", "VLLM_USE_TRTLLM_ATTENTION",
            "VLLM_USE_V2_MODEL_RUNNER",
        ),
        _SWITCH,
    ),
    **dict.fromkeys(
        (
            "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_FLASH_ATTN_VERSION",
            "VLLM_FUSED_MOE_CHUNK_SIZE", "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "VLLM_ALL2ALL_BACKEND", "VLLM_ATTENTION_BACKEND", "VLLM_FLASHINFER_ALLREDUCE_BACKEND",
            "VLLM_FLASHINFER_MOE_BACKEND", "VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_KV_CACHE_LAYOUT",
            "VLLM_MARLIN_INPUT_DTYPE", "VLLM_NVFP4_GEMM_BACKEND",
        ),
        _WORD,
    ),
    "VLLM_DISABLED_KERNELS": _WORDS,
}  # fmt: skip
"""Variables that are taken from a result, and the shape of their values: they choose among vLLM's
own kernels, or are a number."""

OPTIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "--async-scheduling", "--disable-custom-all-reduce", "--enable-chunked-prefill",
            "--enable-expert-parallel", "--enable-prefix-caching", "--enforce-eager",
            "--no-async-scheduling", "--no-enable-chunked-prefill", "--no-enable-prefix-caching",
            "--no-enforce-eager", "-O0", "-O1", "-O2", "-O3",
        ),
        "",
    ),
    **dict.fromkeys(
        (
            "--block-size", "--gpu-memory-utilization", "--kv-cache-memory-bytes",
            "--max-cudagraph-capture-size", "--max-model-len", "--max-num-batched-tokens",
            "--max-num-seqs", "--pipeline-parallel-size", "--seed", "--tensor-parallel-size",
            "-pp", "-tp",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(
        (
            "--all2all-backend", "--attention-backend", "--dtype", "--kv-cache-dtype",
            "--quantization", "-q",
        ),
        _WORD,
    ),
    **{option: "|".join(backends) for option, backends in BACKENDS.items()},
    "--cudagraph-capture-sizes": rf"{_NUMBER}( {_NUMBER}){{0,255}}",
}  # fmt: skip
"""Options of vLLM's that are taken from a result, and the shape of their values."""


def harmless_swap(swap: Swap) -> bool:
    """Whether a kernel's name is that of this package's or of an installed one, and no file's."""
    return bool(re.fullmatch("[A-Za-z0-9_-]+!?", swap.kernel)) and is_own_or_installed(swap.kernel)


def harmless_variable(name: str, value: str) -> bool:
    """Whether a variable only chooses among vLLM's own kernels, or is a number."""
    return name in VARIABLES and bool(re.fullmatch(VARIABLES[name], value))


def harmless_option(words: Sequence[str]) -> bool:
    """Whether an option with the words of its values only chooses kernels or sizes of vLLM's."""
    name, equals, value = words[0].partition("=")
    values = " ".join([value, *words[1:]] if equals else words[1:])
    return name in OPTIONS and bool(re.fullmatch(OPTIONS[name], values))


_NAME = re.compile("[A-Z_][A-Z0-9_]*")
_LONGEST = 600
_Group = tuple[str, ...]


def side_of_result(path: Path, typed: Side | None = None) -> Side:
    """Side b of a result, if its gate passed (else exit code 1).

    Who types a side b at the command line so agrees to have of the result what is not taken from a
    file alone; what was typed must be in it.
    """
    typed = typed or Side()
    result = read_result(path)
    if outcome_of(result) == "gate failed":
        raise CommandError(
            f"{path}: side b fails the correctness gate, so it is not applied", exit_code=1
        )
    b = result.sides[1]
    swaps = tuple(_agreed(swap, typed.swaps) for swap in parse_swaps(b.swaps))
    groups = tuple(_grouped(_added(path, result.sides[0], b)))
    if any("***" in word for group in groups for word in group) or any(
        "***" in value for value in b.environment.values()
    ):
        raise CommandError(f"{path} hides a secret value of side b; give --b instead of the file")
    typed_groups = tuple(_grouped(typed.options))
    missing = [
        *(
            [f"{swap.slot}={swap.kernel}"]
            for swap in swaps
            if not harmless_swap(swap) and swap not in typed.swaps and _is_file(path, swap)
        ),
        *(
            [f"{name}={value}"]
            for name, value in b.environment.items()
            if not harmless_variable(name, value)
            and (name, value) not in typed.environment
            and _may_be_typed(path, name)
        ),
        *(group for group in groups if not harmless_option(group) and group not in typed_groups),
    ]
    if missing:
        raise _not_typed(path, [word for group in missing for word in group])
    others = [
        *(f"{s.slot}={s.kernel}" for s in typed.swaps if s not in swaps),
        *(name for name, value in typed.environment if b.environment.get(name) != value),
        *(group[0] for group in typed_groups if group not in groups),
    ]
    if others:
        raise CommandError(
            f"side b of {path} has no {others[0]}; with a result --b repeats what is its own: "
            "leave it out, or give --b alone"
        )
    options = tuple(word for group in groups for word in group)
    return Side(swaps, options, tuple(b.environment.items()))


def exports_of(side: Side, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables with which `vllm serve` runs a side."""
    if not (side.swaps or side.options or side.environment):
        raise CommandError("side b is stock, so there is nothing to apply; give --b moe=spark_prof")
    found = dict(side.environment)
    if side.swaps:
        found = {SWAPS_ENVIRONMENT: format_swaps(side.swaps), **found}
        allowed = with_plugin_allowed({**environment, **found}).get("VLLM_PLUGINS")
        if allowed is not None and allowed != environment.get("VLLM_PLUGINS"):
            found["VLLM_PLUGINS"] = allowed
    for name, value in found.items():
        if not value.isprintable():
            raise CommandError(
                f"{name}={value} has a control character, which is printed for no shell; set it "
                "yourself"
            )
    return found


def lines_of(side: Side, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The variables of `exports_of` as lines that a shell may evaluate."""
    for name, value in exports_of(side, environment).items():
        yield f"export {name}={shlex.quote(value)}"


def serve_line(side: Side) -> str:
    """The command to start, for a person to read; empty where the variables are all."""
    return f"vllm serve MODEL {shlex.join(side.options)}" if side.options else ""


def _added(path: Path, a: SideFacts, b: SideFacts) -> tuple[str, ...]:
    """The arguments of b that are not a's, from the option on in which they first differ."""
    words = enumerate(b.arguments)
    same = next((at for at, word in words if a.arguments[at : at + 1] != (word,)), None)
    if same is None:
        return ()
    while same and not _is_option(b.arguments[same]):
        same -= 1
    if not _is_option(b.arguments[same]):
        raise CommandError(f"{path}: the arguments of side b are not a's and more; give --b alone")
    return b.arguments[same:]


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-[0-9.]*", word)


def _grouped(words: Sequence[str]) -> Iterator[_Group]:
    """Each option with the words of its values."""
    group: list[str] = []
    for word in words:
        if group and _is_option(word):
            yield tuple(group)
            group = []
        group.append(word)
    if group:
        yield tuple(group)


def _agreed(swap: Swap, typed: Sequence[Swap]) -> Swap:
    """The swap as it was typed, where that is the same function of the same file; else itself."""
    for other in typed:
        if swap.slot == other.slot and _file_of(swap) == _file_of(other):
            return other
    return swap


def _file_of(swap: Swap) -> tuple[str, str]:
    path, colon, function = swap.kernel.rpartition(":")
    if not (colon and path.endswith(".py") and path.isprintable()):
        return swap.kernel, ""
    return os.path.realpath(path), function


def _is_file(path: Path, swap: Swap) -> bool:
    """True; raises CommandError for a kernel that is neither known here nor a file's."""
    if ".py:" in swap.kernel:
        return True
    raise CommandError(
        f"{path}: there is no kernel {swap.kernel[:80]}; install the package that brings it"
    )


def _may_be_typed(path: Path, name: str) -> bool:
    """True; raises CommandError for what is not a name that a side can set."""
    if _NAME.fullmatch(name) and not is_reserved(name):
        return True
    raise CommandError(f"{path} sets {name:.80}, which a side cannot; give --b instead of the file")


def _not_typed(path: Path, words: Sequence[str]) -> CommandError:
    """What to type so that the words are taken from a result."""
    side = shlex.quote(" ".join(map(quoted, words)))
    shown = f"spark-prof ab --apply --b {side} -- {shlex.quote(str(path))}"
    if not (shown.isprintable() and len(shown) < _LONGEST):
        return CommandError(
            f"{path} asks for {words[0][:80]!r}, which is not taken from a file and cannot be "
            "shown whole; give --b instead of the file"
        )
    return CommandError(
        f"{path} asks for what can run code or change more than kernels, so that it is not taken "
        f"from a file alone; if you know and want it, type it too: {shown}"
    )

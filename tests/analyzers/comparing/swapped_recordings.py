"""Recordings of decode steps with known times, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_prof.analyzers.comparing.attribute_gain import summarize
from spark_prof.analyzers.comparing.swap_attribution import Attribution, SwapOnSide, Untraced
from spark_prof.rules.components import component_of, layer_of
from spark_prof.traces.bundle import Bundle
from tests.support import MODULES, Piece, Recorded, call, kernel, kineto, step

LAYERS = 3
STEPS = 25
BETWEEN = 2000
"""Nanoseconds between two steps."""
GAP = 300
COST = 400
"""What tracing adds to each gap, in ns."""

GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"
MOE = "void marlin_moe_wna16::Marlin<1125899906909960l, 562949953487106l>(int4 const*)"
NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)"

_HOST_STEP = 100_000
_PHASES = 3


@dataclass(frozen=True)
class Ran:
    """One kernel of a step."""

    module: str  # path of the module that launched it
    name: str
    ns: int  # from the end of what ran before and the gap to its own end
    gap: int = GAP  # in which nothing runs before it
    early: int = 0  # how long before that it starts, to wait; without a gap then


def layer(number: int) -> list[Ran]:
    """One layer of a stock model: 71 us of kernels."""
    path = f"model.layers.{number}"
    return [
        Ran(f"{path}.input_layernorm", NORM, 2_000),
        Ran(f"{path}.self_attn.qkv_proj", GEMM, 10_000),
        Ran(f"{path}.self_attn.attn", "flash_fwd", 12_000),
        Ran(f"{path}.self_attn.o_proj", GEMM, 7_000),
        Ran(f"{path}.mlp.gate", GEMM, 5_000),
        Ran(f"{path}.mlp.experts.router.select_experts", "void vllm::moe::topkGating<8>", 3_000),
        Ran(f"{path}.mlp.experts.routed_experts.forward_modular", MOE, 20_000),
        Ran(f"{path}.mlp.experts.routed_experts.forward_modular", "act_and_mul_kernel", 2_000),
        Ran(f"{path}.mlp.experts.routed_experts.forward_modular", MOE + " down", 10_000),
    ]


def stock() -> list[Ran]:
    """A step of the stock model."""
    inside = [one for number in range(LAYERS) for one in layer(number)]
    return [*inside, Ran("lm_head", GEMM, 30_000)]


def with_experts(rows: Sequence[Ran], layers: Sequence[int] = range(LAYERS)) -> list[Ran]:
    """The same step with the project's experts in some layers: 18 us in place of 35 us.

    They start early, so that three of their gaps are gone.
    """
    found: list[Ran] = []
    for row in rows:
        if layer_of(row.module) not in layers or ".experts" not in row.module:
            found.append(row)
        elif "select_experts" in row.module:
            module = row.module.replace("router.select_experts", "routed_experts.forward_modular")
            found += [
                Ran(module, "route", 1_000),
                Ran(module, "gate_up", 11_000, 0, 800),
                Ran(module, "down", 6_000, 0, 5_000),
            ]
    return found


def changed(rows: Sequence[Ran], part: str, **fields: Any) -> list[Ran]:
    """The same step with other values where `part` is in the module's path."""
    return [replace(row, **fields) if part in row.module else row for row in rows]


def untraced_ns(rows: Sequence[Ran]) -> int:
    """How long a step takes while nothing is recorded."""
    return BETWEEN + sum(row.gap + row.ns for row in rows[1:]) + rows[0].ns


def record(
    folder: Path,
    rows: Sequence[Ran],
    steps: int = STEPS,
    cost: int = COST,
    extra: Callable[[int, int], int] = lambda number, index: 0,
    phases: Mapping[int, str] | None = None,
    **counts: int,
) -> Bundle:
    """A bundle of such steps, one after another.

    Args:
        cost: what tracing adds to each gap, in ns.
        extra: what a kernel takes longer, by its step and place.
        phases: steps that are no decode steps.
        counts: columns of the steps table.
    """
    modules = list(MODULES[:_PHASES])
    paths = list(dict.fromkeys(row.module for row in rows))
    modules += [
        {"path": path, "type": "", "layer": layer_of(path), "component": component_of(path, "")}
        for path in paths
    ]
    events: list[tuple[int, int]] = []
    trace: list[Any] = []
    found = []
    end = 10_000_000
    for number in range(steps):
        host = number * _HOST_STEP
        found.append(
            step(number, host, host + _HOST_STEP - 1, (phases or {}).get(number, "decode"),
                 **{"context_tokens": 100} | counts)
        )  # fmt: skip
        for index, row in enumerate(rows):
            launched = host + 100 + 100 * index
            events += call(paths.index(row.module) + _PHASES, launched, launched + 50)
            gap = BETWEEN if index == 0 else row.gap
            begin = end + gap + (cost if gap else 0)
            end = begin + row.ns + extra(number, index)
            number_of_all = number * len(rows) + index + 1
            trace.append(kernel(row.name, begin - row.early, end, number_of_all, launched + 10))
    piece = Piece(found, events, kineto(*trace))
    return Recorded({0: [piece]}, modules=modules).assemble(folder)


def swaps(
    slot: str, path: str, side: str = "b", kernel_name: str = "spark_prof"
) -> list[SwapOnSide]:
    """The swap of one module of each layer; the path holds a {} for its number."""
    return [SwapOnSide(side, slot, path.format(number), kernel_name) for number in range(LAYERS)]


EXPERTS = swaps("moe", "model.layers.{}.mlp.experts")


def attribute(
    folder: Path,
    a: Sequence[Ran],
    b: Sequence[Ran],
    swapped: Sequence[SwapOnSide] = EXPERTS,
    **of_record: Any,
) -> Attribution:
    """The attribution of two recordings whose untraced times are exactly known."""
    sides = (record(folder / name, rows, **of_record) for name, rows in (("a", a), ("b", b)))
    untraced = Untraced(untraced_ns(a) / 1e3, untraced_ns(b) / 1e3)
    return summarize(*sides, swapped, untraced)

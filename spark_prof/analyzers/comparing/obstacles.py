"""Why steps of two sides are not comparable, and what is said of their difference instead.

Models are known by what their configurations hold, and without these by their layers: never by a
name. A gate and a headline stand on the same obstacles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    Comparison,
    KernelPart,
    Obstacle,
    PhaseComparison,
    kernels_of,
    scaled,
    summed,
)
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.analyzers.lookup import mapping_in
from spark_prof.analyzers.step_time import GAPS

MODEL_SETTINGS: Mapping[str, Sequence[str]] = {
    "architectures": ("architectures",),
    "hidden layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden size": ("hidden_size", "n_embd", "d_model"),
    "intermediate size": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "experts' intermediate size": ("moe_intermediate_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts per token": ("num_experts_per_tok", "experts_per_token"),
    "attention heads": ("num_attention_heads", "n_head"),
    "key-value heads": ("num_key_value_heads",),
    "head size": ("head_dim",),
    "vocabulary size": ("vocab_size",),
}
"""What makes a model another one, and its keys in a checkpoint's configuration: in the order in
which it is told. Quantization is none of it: the same weights in another format do the same work.
"""

_SAME_WORK = 0.02  # calls that differ by a smaller share are as many
_LONGER = 1.25  # contexts that are so many times as long are other work


def obstacle_of(
    sides: tuple[Sequence[ComparedRecording], Sequence[ComparedRecording]],
    phase: PhaseComparison,
    eager: tuple[bool, bool],
) -> Obstacle | None:
    """The first reason why no change is told of these steps; None where one is.

    Args:
        eager: which sides launched every kernel by itself.
    """
    a, b = sides[0][0], sides[1][0]
    return (
        other_model(a, b)
        or _parallel(a, b, eager)
        or _windows(sides, phase)
        or _batch(phase)
        or _few(phase)
        or _work(phase)
        or _nothing_ran(phase, eager)
        or _contexts(phase, eager)
    )


def other_model(a: ComparedRecording, b: ComparedRecording) -> Obstacle | None:
    """In what the models differ by their content; None where nothing tells."""
    configs = [_text_config(mapping_in(side.facts, "model_config")) for side in (a, b)]
    for word, keys in MODEL_SETTINGS.items():
        ours, theirs = (_setting(config, keys) for config in configs)
        if ours and theirs and ours != theirs:
            return Obstacle("models", word, ours, theirs)
    if all(configs):
        return None
    layers = [{row.layer for row in side.report.layers if row.layer is not None} for side in (a, b)]
    if any(side.report.failed("layers-") for side in (a, b)) or not all(layers):
        return None
    if len(layers[0]) != len(layers[1]):
        return Obstacle("models", "layers", *(str(len(numbers)) for numbers in layers))
    return None


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with that of its language model, which the others stand around."""
    return {**mapping_in(config, "text_config"), **config}


def _setting(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    value = next((config[key] for key in keys if config.get(key) is not None), None)
    if isinstance(value, list):
        return ", ".join(map(str, value[:4]))
    return "" if value is None or isinstance(value, Mapping) else str(value)


def _parallel(
    a: ComparedRecording, b: ComparedRecording, eager: tuple[bool, bool]
) -> Obstacle | None:
    """The obstacle that runs are parallel in other ways, so that a rank's kernels do other work."""
    sizes = [side.report.parallel for side in (a, b)]
    shapes = [size.shape if size else None for size in sizes]
    if not all(eager) or None in shapes or shapes[0] == shapes[1]:
        return None
    words = [", ".join(size.sizes) or "one GPU" for size in sizes if size]
    return Obstacle("parallel", "", *words)


def _windows(
    sides: tuple[Sequence[ComparedRecording], Sequence[ComparedRecording]], phase: PhaseComparison
) -> Obstacle | None:
    if phase.unit != "recording":
        return None
    tells_steps = [all(recording.report.run.tells_steps for recording in side) for side in sides]
    a, b = ("steps" if one else "" for one in tells_steps)
    return Obstacle("windows", "", a, b)


def _batch(phase: PhaseComparison) -> Obstacle | None:
    if phase.alike or phase.phase != "decode":
        return None
    return Obstacle("batch", "", *_usual_sizes(phase))


def _usual_sizes(phase: PhaseComparison) -> Iterator[str]:
    for side in ("steps_a", "steps_b"):
        most_frequent = max(phase.sizes, key=lambda row: getattr(row, side))
        yield str(most_frequent.size)


def _few(phase: PhaseComparison) -> Obstacle | None:
    """Fewer than `FEWEST_STEPS` steps tell nothing of how much they vary."""
    if math.isfinite(phase.like.low):
        return None
    sizes = [row for row in phase.sizes if row.weight] or list(phase.sizes)
    largest = max(sizes, key=lambda row: (min(row.steps_a, row.steps_b), row.steps_a))
    counts = [sum(getattr(row, side) for row in sizes) for side in ("steps_a", "steps_b")]
    if phase.alike and phase.phase != "unknown":
        counts = [largest.steps_a, largest.steps_b]
    return Obstacle("steps", str(largest.size if phase.alike else 0), *map(str, counts))


def _work(phase: PhaseComparison) -> Obstacle | None:
    """Steps that nothing tells apart have to call what both sides run equally often."""
    if phase.phase != "unknown":
        return None
    shared = [row for row in phase.kernels if row.where == "both"]
    if not shared:
        return Obstacle("work", "", "", "")
    largest = max(shared, key=lambda row: row.change.a + row.change.b)
    other = sum(row.change.a for row in shared if _calls_differ(row))
    if other <= 0.5 * sum(row.change.a for row in shared):
        return None
    if not _calls_differ(largest):
        differing = [row for row in shared if _calls_differ(row)]
        largest = max(differing, key=lambda row: row.change.a + row.change.b)
    return Obstacle("work", largest.name, f"{largest.calls_a:,.4g}", f"{largest.calls_b:,.4g}")


def _calls_differ(row: KernelPart) -> bool:
    return abs(row.calls_b - row.calls_a) > _SAME_WORK * max(row.calls_a, row.calls_b)


def _nothing_ran(phase: PhaseComparison, eager: tuple[bool, bool]) -> Obstacle | None:
    kernels = kernels_of(phase)
    if not all(eager) or (kernels.a > 0 and kernels.b > 0):
        return None
    return Obstacle("kernels", "", *("kernels" if us > 0 else "" for us in (kernels.a, kernels.b)))


def contexts_differ(phase: PhaseComparison) -> bool:
    """Whether the steps of one side read much more of the KV cache than the other's."""
    a, b = phase.context_tokens
    return a > 0 and b > 0 and max(a, b) > _LONGER * min(a, b)


def _contexts(phase: PhaseComparison, eager: tuple[bool, bool]) -> Obstacle | None:
    """Where contexts differ, a change has to be there without what they explain, or attention."""
    if not contexts_differ(phase):
        return None
    parts = [part.change for part in phase.parts if not (all(eager) and part.name in GAPS)]
    change = summed(parts) if all(eager) else phase.like
    without = summed([
        part.change for part in phase.parts
        if part.name != "attention" and not (all(eager) and part.name in GAPS)
    ])  # fmt: skip
    if not change.sure or _as_sure(without, change):
        return None
    if context := phase.context:
        rest, wide = change.us - context.us, (context.high - context.low) / 2
        wide = ((change.high - change.us) ** 2 + wide**2) ** 0.5
        if _as_sure(Change(0.0, rest, rest, rest - wide, rest + wide), change):
            return None
    return Obstacle("contexts", "", *(f"{tokens:,.0f}" for tokens in phase.context_tokens))


def _as_sure(part: Change, whole: Change) -> bool:
    """Whether the part is sure and in the direction of the whole."""
    return part.sure and (part.us > 0) == (whole.us > 0)


Verdict = Literal["slower", "faster", "no difference shown", "not comparable"]
Basis = Literal["step", "token", "kernels", "kernels by token"]

_AS_MANY = 0.01  # tokens a step that differ by a smaller share are as many


@dataclass(frozen=True)
class Outcome:
    """The answer of a comparison, of the second side.

    `outcome_of(comparison).verdict` is "slower" where 0 lies below the 95 % interval of `change`.
    """

    verdict: Verdict
    phase: str  # whose steps it is about: decode, prefill or unknown
    basis: Basis  # of what the change is
    change: Change | None  # None where the sides are not comparable
    obstacle: Obstacle | None  # why they are not


def outcome_of(comparison: Comparison) -> Outcome:
    """The answer: of decode steps, of others only where those are not comparable."""
    phase = next((phase for phase in comparison.phases if not phase.obstacle), comparison.phases[0])
    basis = basis_of(comparison, phase)
    if phase.obstacle:
        return Outcome("not comparable", phase.phase, basis, None, phase.obstacle)
    change = change_of(phase, basis)
    verdict: Verdict = "no difference shown"
    if change.sure:
        verdict = "slower" if change.us > 0 else "faster"
    return Outcome(verdict, phase.phase, basis, change, None)


def basis_of(comparison: Comparison, phase: PhaseComparison) -> Basis:
    """Of what a change is told: a step, its kernels where both sides ran eagerly, or a token."""
    if all(comparison.eager):
        return "kernels by token" if by_token(phase) else "kernels"
    return "token" if by_token(phase) else "step"


def by_token(phase: PhaseComparison) -> bool:
    """Whether steps of the sides give a sequence other numbers of tokens, as with speculation."""
    a, b = phase.step_tokens
    return phase.token is not None and abs(b - a) > _AS_MANY * max(a, b)


def change_of(phase: PhaseComparison, basis: Basis) -> Change:
    """The change that a basis means."""
    if basis == "kernels":
        return kernels_of(phase)
    if basis == "kernels by token":
        a, b = phase.step_tokens
        return scaled(kernels_of(phase), 1 / a, 1 / b)
    return phase.token if basis == "token" and phase.token else phase.like

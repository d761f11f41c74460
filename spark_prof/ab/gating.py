"""The correctness gate of one batch size, and what it needs to know of the sides."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.ab.gate import Bits, LayerError, Position, judge
from spark_prof.ab.gate_bounds import Depth
from spark_prof.ab.measuring import Shape
from spark_prof.ab.messages import Batch, Facts
from spark_prof.ab.result import Gate
from spark_prof.ab.setting import Setting

_POSITIONS = 256
"""At least, so that what rarely happens, as another choice of experts, is met by the floor too."""
_FEWEST_TOKENS = 32


def gate_batch(setting: Setting, shape: Shape, facts: Facts) -> Batch:
    """The prompts of the gate, and how many tokens each request generates.

    Args:
        setting: of the run.
        shape: whose batch size it is.
        facts: of the engine.
    """
    tokens = setting.options.gate_tokens
    if tokens is None:
        wanted = max(_FEWEST_TOKENS, -(-_POSITIONS // shape.requests))
        tokens = max(1, min(wanted, facts.longest - shape.prompt_tokens - 1))
    return Batch(shape.requests, shape.prompt_tokens, tokens)


def bits_of(setting: Setting) -> Bits:
    """Whether both sides compute with the same bits of the weights.

    What an option or a variable of vLLM's changes is not known: it may be a kernel that rounds
    activations, so such sides are held to what is said of sides that quantize.
    """
    a, b = setting.a, setting.b
    if a.options != b.options or dict(a.environment) != dict(b.environment):
        return "changed"
    rows = (swap for rank in setting.keeper.result.swaps for swap in rank.swaps if swap.live)
    return "changed" if any(swap.bits == "changed" for swap in rows) else "kept"


def keep_verdict(
    setting: Setting,
    shape: Shape,
    facts: Facts,
    positions: Sequence[Position],
    floor: Sequence[Position],
    layers: Sequence[LayerError],
) -> bool:
    """Adds the verdict of a batch size to the result; whether it passed.

    Args:
        setting: of the run.
        shape: whose batch size it is.
        facts: of the engine.
        positions: of a against b.
        floor: of a against itself, disturbed.
        layers: each swapped layer alone.
    """
    depth = None if facts.layers is None else Depth(facts.layers, facts.routed)
    verdict = judge(positions, bits_of(setting), floor, layers, depth)
    setting.keeper.add(gates=(Gate(shape.requests, verdict),))
    for line in verdict.reasons:
        setting.say(f"gate at batch size {shape.requests}: {line}")
    return verdict.passed

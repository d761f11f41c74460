"""What to know before using an attribution."""

from __future__ import annotations

from collections.abc import Sequence

from spark_prof.analyzers.swap_gain.model import ComponentGain, SideSteps, Untraced

_FEW = 20
_CONTEXTS_APART = 0.05
_EXACT = 1e-3
_SHARE = 0.01


def notes_of(
    steps: tuple[SideSteps, SideSteps],
    components: Sequence[ComponentGain],
    untraced: Untraced | None,
) -> tuple[str, ...]:
    """One line each.

    Args:
        steps: of sides a and b.
        components: the rows.
        untraced: what was measured without recording.
    """
    a, b = steps
    lines = []
    if not any(row.touched for row in components):
        lines.append(
            "No swap tells the sides apart, so that no component is expected to change: for sides "
            "that differ in options, what moved is what they changed."
        )
    if untraced is None:
        lines.append(
            "What tracing costs is not known: no times without recording were given, and all times "
            "include it."
        )
    elif (beyond := a.corrected_us - untraced.a_us) > _EXACT * untraced.a_us:
        lines.append(
            f"Tracing costs side a {a.traced_us - untraced.a_us:.1f} us a step, {beyond:.1f} us "
            "more than all of its gaps: that is left in the times of its kernels."
        )
    elif beyond < -_EXACT * untraced.a_us:
        lines.append(
            f"Recorded, a step of side a takes {-beyond:.1f} us less than without recording: "
            "nothing was taken off, and its rows do not reach what was measured."
        )
    for name, side in (("a", a), ("b", b)):
        if side.steps < _FEW:
            lines.append(f"Side {name} has {side.steps} recorded steps; record {_FEW} or more.")
    contexts = sorted((a.context_tokens, b.context_tokens))
    if contexts[1] - contexts[0] > _CONTEXTS_APART * contexts[1]:
        lines.append(
            f"The KV cache held {a.context_tokens:,.0f} tokens on side a and "
            f"{b.context_tokens:,.0f} on side b: attention differs by that, too."
        )
    for row in components:
        for name, us, side in (("a", row.a_us, a), ("b", row.b_us, b)):
            if row.component == "other" and us > _SHARE * side.corrected_us:
                lines.append(f"{us:.1f} us of a step of side {name} have no component.")
    return tuple(lines)

"""Which of this package's kernels, and of vLLM's own, may run the layers of a recorded model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from spark_prof.ab.sides import BACKENDS
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.measured_gains import Gain, measured_gain
from spark_prof.analyzers.findings.next_command import narrows
from spark_prof.analyzers.findings.other_backends import (
    OPTIONS,
    choice_of_row,
    other_backends,
    stored_format,
)
from spark_prof.analyzers.findings.rule import ms_per_token
from spark_prof.analyzers.model import Report
from spark_prof.kernels.tuning import known_runs
from spark_prof.rules.backend_order import backends_for, orders
from spark_prof.rules.environment import version_of
from spark_prof.rules.tune_candidates import (
    DENSE_LAYER_MODELS,
    EXPERTS_LAYER_MODELS,
    FOREIGN,
    LAYER_MODELS,
    MEASURED_ONCE,
    MOST_TOKENS,
    SWAPS,
    UNMEASURED_LAYER_MODELS,
    SwappableSlot,
)
from spark_prof.tune.beside_layer import layer_components, slots_beside_layer, why_no_experts
from spark_prof.tune.engine_traits import UNTOLD, EngineTraits, MachineFacts
from spark_prof.tune.tune_trial import Candidate, UntriedCandidate

Row: TypeAlias = Candidate | UntriedCandidate

_KERNELS, _BACKENDS = "kernels", "backends"
_NO_WEIGHTS = "--attention-backend"
_EVERY = tuple(f"{name}=spark_prof" for name in ("layer", *(swap.slot for swap in SWAPS)))
_AT_ONCE = "the kernels of all these slots at once"


def swap_rows(report: Report, facts: MachineFacts, traits: EngineTraits) -> Iterator[Row]:
    """Swaps of this package's kernels: sets of them, each by itself, and what quantizes at load."""
    if why := why_no_swaps(traits):
        yield from (UntriedCandidate(words, _KERNELS, why) for words in _EVERY)
        return
    singles = [_layer(report, facts), *(_swap(swap, report, facts) for swap in SWAPS)]
    narrow = [row for swap in SWAPS if swap.quantizes for row in _quantized(swap, report)]
    kernels, formats = (
        {row.words.partition("=")[0]: row.words for row in rows if isinstance(row, Candidate)}
        for rows in (singles, narrow[::2])  # MXFP4, of it and FP8 the one with fewer bytes
    )
    yield from _sets(kernels, formats, report, facts)
    yield from (*singles, *narrow)


def why_no_swaps(traits: EngineTraits) -> str:
    """Why no kernel of this package can run on an engine; empty where some may."""
    if "gpu" not in traits.present:
        return "kernels of this package need an NVIDIA GPU"
    if traits.sizes[0] > MOST_TOKENS:
        return f"they take up to {MOST_TOKENS} tokens a step, and these batch sizes are larger"
    return "" if traits.has_layers else UNTOLD


def _swap(swap: SwappableSlot, report: Report, facts: MachineFacts) -> Row:
    components = _components_in(swap.components, report)
    words = f"{swap.slot}=spark_prof"
    if not components:
        return UntriedCandidate(words, _KERNELS, "the model has no such layer")
    formats = {stored_format(report, component) for component in components}
    if not formats <= {*swap.formats}:
        format_names = ", ".join(sorted(formats - {*swap.formats}))
        why = (
            f"the kernels take no {format_names} weights there"
            if format_names
            else "its weights' formats differ"
        )
        return UntriedCandidate(words, _KERNELS, why)
    gains = [gain for part in components if (gain := measured_gain(part, report))]
    if swap.slot == "router":
        condition = "choosing experts is a few small kernels, and one of this package"
        words += "" if _is_measured(facts) else "!"
    elif len(gains) == len(components):
        condition = _measured(gains[0])
    else:
        words += "!"
        condition = "was not measured to be faster on weights like these"
        if not _is_measured(facts):
            condition = f"nothing was measured on compute capability {facts.capability} yet"
    promise = most_promising(report, _about(components, report), components)
    return Candidate(words, _KERNELS, condition, *promise)


def _measured(gain: Gain) -> str:
    """What was measured, if it was so against the kernel that runs, on this GPU."""
    if gain.holds:
        return f"measured {gain.text} on {gain.where}"
    running = f" ({gain.running})" if gain.running else ""
    return f"measured to be faster than {gain.other} on {gain.where}, not than what runs{running}"


def _layer(report: Report, facts: MachineFacts) -> Row:
    attention = {row.kernel for row in report.modules if row.component == "attention"} - {""}
    experts_only = facts.architecture in EXPERTS_LAYER_MODELS
    why = ""
    if facts.architecture not in LAYER_MODELS:
        why = "slot layer knows no layers like these"
    elif experts_only:
        why = why_no_experts(report, facts.architecture)
    elif attention != {"FlashAttentionImpl"}:
        why = "slot layer is for vLLM's FlashAttention"
    dense = facts.architecture in DENSE_LAYER_MODELS
    fp8 = dense and {stored_format(report, part) for part in ("qkv", "mlp")} == {"fp8"}
    unmeasured = experts_only or (dense and not fp8)
    unmeasured |= facts.architecture in UNMEASURED_LAYER_MODELS
    words = "layer=spark_prof" + ("!" if unmeasured or not _is_measured(facts) else "")
    if why:
        return UntriedCandidate(words, _KERNELS, why)
    condition = "norms, qkv, attention, router and experts of a layer run as 5 kernels"
    if dense:
        condition = "norms, qkv, attention and mlp of a layer run as 4 kernels"
    elif experts_only:
        condition = "norms, qkv, router and experts of a layer run as 4 kernels"
    once = facts.architecture in MEASURED_ONCE
    if unmeasured:
        condition += "; measured in one engine a side" if once else "; nobody measured it"
    components = layer_components(facts.architecture)
    finding, most_ms = most_promising(report, _about(components, report), components)
    # Not known to be faster than moe and router, it comes behind what promises something.
    compared = once or not experts_only
    return Candidate(words, _KERNELS, condition, finding, most_ms if compared else None)


def _sets(
    every: dict[str, str], four_bits: dict[str, str], report: Report, facts: MachineFacts
) -> Iterator[Candidate]:
    """Kernels of several slots together, as they are, and with BF16 weights as MXFP4.

    Of kernels that keep the weights, those that were measured to be faster, if there are any.
    Beside slot `layer` those of slots that it leaves something to swap.
    """
    inside = {"moe", "router", "qkv", "mlp"} - slots_beside_layer(report, facts.architecture)
    same_weights = {slot: word for slot, word in every.items() if not word.endswith("!")}
    same_weights = same_weights if set(same_weights) - {"router", "layer"} else every
    if "layer" in same_weights and "qkv" in four_bits:
        four_bits = {**four_bits, "layer": "layer=mxfp4"}
    components = {swap.slot: swap.components for swap in SWAPS}
    components["layer"] = layer_components(facts.architecture)
    for chosen in (same_weights, {**same_weights, **four_bits} if four_bits else {}):
        for whole in (True, False):
            slots = [s for s in chosen if s not in (inside if whole else ("layer",))]
            if len(slots) < 2 or (whole and "layer" not in chosen):
                continue
            parts = tuple(part for slot in slots for part in components[slot])
            about = [
                *_about(parts, report),
                *_about(parts, report, narrowing=chosen is not same_weights),
            ]
            yield Candidate(
                ",".join(chosen[slot] for slot in slots), _KERNELS, _AT_ONCE,
                *most_promising(report, about, parts),
            )  # fmt: skip


def _quantized(swap: SwappableSlot, report: Report) -> Iterator[Row]:
    components = _components_in(swap.components, report)
    wide = bool(components) and {stored_format(report, part) for part in components} == {"bf16"}
    for kernel in ("mxfp4", "fp8"):
        words = f"{swap.slot}={kernel}"
        if not wide:
            why = "its weights are narrow already" if components else "the model has no such layer"
            yield UntriedCandidate(words, _KERNELS, why)
            continue
        condition = f"BF16 weights; as {kernel} fewer bytes are read"
        gains = [measured_gain(part, report, kernel) for part in components]
        if gains[0] is not None:
            condition += f": {_measured(gains[0])}"
        promise = most_promising(report, _about(components, report, narrowing=True), components)
        yield Candidate(words, _KERNELS, condition, *promise, changes_model=True)


def backend_rows(report: Report, facts: MachineFacts) -> Iterator[Row]:
    """Kernels of vLLM that are known to run here beside those that ran."""
    for option in dict.fromkeys(OPTIONS.values()):
        parts = tuple(part for part, of in OPTIONS.items() if of == option)
        components = _components_in(parts, report)
        backends = [backend for part in components if (backend := other_backends(report, part))]
        stored = {backend.stored for backend in backends} - {""}
        if option == "--linear-backend":
            stored -= {"bf16"}
        why = ""
        if not components:
            why = "the model has no such layer" if report.modules else UNTOLD
        elif not facts.capability:
            why = "it chooses among kernels for GPUs, and the recording tells of none"
        elif not stored:
            why = "the format of its layers is not told"
            if {backend.stored for backend in backends} == {"bf16"}:
                why = "it chooses kernels of quantized layers, and these are BF16"
        if why:
            yield UntriedCandidate(option, _BACKENDS, why)
            continue
        first = tuple(dict.fromkeys(value for backend in backends for value in backend.values))
        later = tuple(dict.fromkeys(value for backend in backends for value in backend.later))
        tried = tuple(dict.fromkeys((*first, *later)))
        weights_text = (
            "this attention" if option == _NO_WEIGHTS else f"{' and '.join(sorted(stored))} weights"
        )
        promised = most_promising(report, _about(components, report), components)
        for value in tried:
            condition = f"vLLM has it for {weights_text} on compute capability {facts.capability}"
            if value not in first:
                condition += _after(option, value, stored, facts)
            if packages := packages_of(option, value, facts):
                condition += f"; it needs {' and '.join(packages)}, which vLLM does not bring"
            yield Candidate(f"{option}={value}", _BACKENDS, condition, *promised)
        is_known = any(backend.complete for backend in backends)
        yield from _not_tried(
            option, tried, stored if is_known else set(), weights_text, report, facts
        )


def _after(option: str, value: str, stored: set[str], facts: MachineFacts) -> str:
    """Where a backend stands in vLLM's own order that does not come before the one that ran."""
    rows = [
        row
        for form in stored
        for row in backends_for(option, form, float(facts.capability), version_of(facts.vllm)[:2])
        if row.value == value
    ]
    if rows and not any(row.by_itself for row in rows):
        return ", and takes it only where it is asked for"
    return ", and itself tries it after the one that runs"


def packages_of(option: str, value: str, facts: MachineFacts) -> tuple[str, ...]:
    """The packages that a backend needs beside those that come with vLLM."""
    version = version_of(facts.vllm)[:2]
    packages = {
        package
        for row in orders()
        if row.option == option and row.since <= version <= row.until
        for backend in row.backends
        if backend.value == value
        for package in backend.packages
    }
    return tuple(sorted(packages))


def _not_tried(
    option: str, tried: Sequence[str], stored: set[str], weights_text: str, report: Report,
    facts: MachineFacts,
) -> Iterator[UntriedCandidate]:  # fmt: skip
    """The other values of an option."""
    rows = [b for row in orders() if row.option == option for b in row.backends]
    version = version_of(facts.vllm)[:2]
    here = {
        row.value: row for form in stored
        for row in backends_for(option, form, float(facts.capability), version)
    }  # fmt: skip
    elsewhere = {row.value for row in rows if row.stored in stored}
    kernels = {row.kernel for row in report.modules} - {""}
    running = {row.value for row in rows if row.implementation in kernels} | {
        value
        for layers in (report.audit.rows if report.audit else ())
        for source in layers.witnesses
        if source.who == "engine" and OPTIONS.get(layers.layer) == option
        for value, row in here.items()
        if (choice := choice_of_row(row)) and choice.family == source.family
    }
    foreign = {value: why for names, why in FOREIGN.items() for value in names.split()}
    for value in dict.fromkeys((*BACKENDS.get(option, ()), *(row.value for row in rows))):
        if value in tried or value == "auto":
            continue
        if value in foreign:
            why = foreign[value]
        elif not stored:
            why = "what runs now is not known to be one of its kernels, nor what else could"
        elif value in running:
            why = "it is what runs"
        elif value in here:
            why = "it computes with narrower activations than this checkpoint is for"
        elif value in elsewhere:
            why = (
                f"vLLM has it for {weights_text}, but not on compute capability {facts.capability}"
            )
        else:
            why = f"that it runs {weights_text} on this GPU in vLLM {facts.vllm} is not known"
        yield UntriedCandidate(f"{option}={value}", _BACKENDS, why)


def most_promising(
    report: Report, findings: Sequence[Finding], components: tuple[str, ...] = ()
) -> tuple[str, float | None]:
    """The finding that promises most, and its ms per token; no more than components take."""
    best = max(findings, key=lambda finding: finding.ms_per_token or 0.0, default=None)
    if best is None:
        return "", None
    spent = sum(row.decode_us for row in report.components if row.name in components)
    most = ms_per_token(report, spent) if components else None
    if best.ms_per_token is None or most is None:
        return best.id, best.ms_per_token
    return best.id, min(best.ms_per_token, most)


def _about(
    components: tuple[str, ...], report: Report, *, narrowing: bool = False
) -> list[Finding]:
    """The findings about kernels of these components."""
    return [
        finding
        for finding in report.findings
        if set(finding.components) & set(components) and narrows(finding) is narrowing
    ]


def _components_in(components: tuple[str, ...], report: Report) -> tuple[str, ...]:
    return tuple(part for part in components if any(m.component == part for m in report.modules))


def _is_measured(facts: MachineFacts) -> bool:
    """Whether any kernel of this package was measured on the GPU's architecture."""
    here = f"sm_{facts.capability.replace('.', '')}"
    return any(run.architecture.rstrip("af") == here for run in known_runs())

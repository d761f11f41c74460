"""Which of this package's kernels, and of vLLM's own, may run the layers of a recorded model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from spark_prof.ab.sides import BACKENDS
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.next_command import MOST_TOKENS, NARROWING, measured_gain
from spark_prof.analyzers.findings.other_backends import OPTIONS, other_backends, stored_format
from spark_prof.analyzers.findings.rule import ms_per_token
from spark_prof.analyzers.model import Report
from spark_prof.kernels.tuning import known_runs
from spark_prof.rules import backends as known_backends
from spark_prof.rules.environment import version_of
from spark_prof.rules.tuning import FOREIGN, LAYER_MODELS, SWAPS, Swap
from spark_prof.tune.candidate import Candidate, LeftOut
from spark_prof.tune.engine_traits import EngineTraits
from spark_prof.tune.machine_facts import MachineFacts

Row: TypeAlias = Candidate | LeftOut

_KERNELS = "kernels"
_UNTOLD = "the recording does not tell the model's layers; spark-prof record does"
_EVERY = ", ".join(f"{name}=spark_prof" for name in ("layer", *(swap.slot for swap in SWAPS)))
_IN_LAYER = ("moe", "router", "qkv")
_OF_LAYER = ("qkv", "attention", "rope", "norm", "router", "experts")  # what slot layer computes
_SETTLED = "the kernels of all these slots at once"


def swap_rows(report: Report, facts: MachineFacts, traits: EngineTraits) -> Iterator[Row]:
    """Swaps of this package's kernels: all at once, each by itself, and what quantizes at load."""
    why = ""
    if "gpu" not in traits.present:
        why = "kernels of this package need an NVIDIA GPU"
    elif traits.sizes[0] > MOST_TOKENS:
        why = f"they take up to {MOST_TOKENS} tokens a step, and these batch sizes are larger"
    elif not traits.told:
        why = traits.why_not("attention")
    if why:
        yield LeftOut(_EVERY, _KERNELS, why)
        return
    rows: dict[str, Candidate] = {}
    left: list[LeftOut] = []
    for swap in SWAPS:
        row = _swap(swap, report, facts)
        if isinstance(row, Candidate):
            rows[swap.slot] = row
        else:
            left.append(row)
    layer = _layer(report, facts, traits)
    yield from _sets(rows, layer, report)
    yield layer
    yield from rows.values()
    yield from left
    for swap in SWAPS:
        if swap.quantizes:
            yield from _quantized(swap, report)


def _swap(swap: Swap, report: Report, facts: MachineFacts) -> Row:
    held = _held(swap.components, report)
    words = f"{swap.slot}=spark_prof"
    if not held:
        return LeftOut(words, _KERNELS, "the model has no such layer")
    formats = {stored_format(report, component) for component in held}
    if not formats <= {*swap.formats}:
        told = ", ".join(sorted(formats - {*swap.formats}))
        why = f"the kernels take no {told} weights there" if told else "its weights' formats differ"
        return LeftOut(words, _KERNELS, why)
    gains = [gain for part in held if (gain := measured_gain(part, report))]
    if swap.slot == "router":
        condition = "choosing experts is a few small kernels, and one of this package"
        words += "" if _is_measured(facts) else "!"
    elif len(gains) == len(held):
        condition = f"measured {gains[0].text} on {gains[0].machine}"
    else:
        words += "!"
        condition = f"was not measured to be faster for such {'/'.join(sorted(formats))} weights on such a GPU"
    found, ms = most_promising(report, _about(held, report), held)
    return Candidate(words, _KERNELS, condition, found, ms)


def _layer(report: Report, facts: MachineFacts, traits: EngineTraits) -> Row:
    words = "layer=spark_prof"
    attention = {row.kernel for row in report.modules if row.component == "attention"} - {""}
    why = ""
    if facts.architecture not in LAYER_MODELS:
        why = "slot layer knows the decoder layers of gpt-oss and Qwen3-MoE only"
    elif "several-gpus" in traits.present:
        why = "slot layer is for one GPU"
    elif attention != {"FlashAttentionImpl"}:
        why = "slot layer is for vLLM's FlashAttention"
    elif "wide-cache" not in traits.present:
        why = "slot layer is for a KV cache of 16 bits"
    if why:
        return LeftOut(words, _KERNELS, why)
    found, ms = most_promising(report, _about(_OF_LAYER, report), _OF_LAYER)
    return Candidate(
        words + ("" if _is_measured(facts) else "!"), _KERNELS,
        "norms, qkv, attention, router and experts of a layer run as 5 kernels", found, ms,
    )  # fmt: skip


def _sets(rows: Mapping[str, Candidate], layer: Row, report: Report) -> Iterator[Candidate]:
    """Kernels of several slots together, those that were measured to be faster if there are any."""
    measured = [slot for slot, row in rows.items() if not row.words.endswith("!")]
    slots = measured if set(measured) - {"router"} else list(rows)
    outside = [slot for slot in slots if slot not in _IN_LAYER]
    for words, names in (
        ([layer.words] if isinstance(layer, Candidate) else [], outside),
        ([], slots),
    ):
        taken = [*words, *(rows[slot].words for slot in names)]
        if len(taken) > 1 and (words or names is slots):
            parts = tuple(c for swap in SWAPS if swap.slot in names for c in swap.components)
            parts += _OF_LAYER if words else ()
            found, ms = most_promising(report, _about(parts, report), parts)
            yield Candidate(",".join(taken), _KERNELS, _SETTLED, found, ms)


def _quantized(swap: Swap, report: Report) -> Iterator[Row]:
    held = _held(swap.components, report)
    wide = bool(held) and {stored_format(report, part) for part in held} == {"bf16"}
    for kernel in ("mxfp4", "fp8"):
        words = f"{swap.slot}={kernel}"
        if not wide:
            why = "its weights are narrow already" if held else "the model has no such layer"
            yield LeftOut(words, _KERNELS, why)
            continue
        condition = f"BF16 weights; as {kernel} fewer bytes are read"
        gains = [measured_gain(part, report, kernel) for part in held]
        if gains[0] is not None:
            condition += f": measured {gains[0].text} on {gains[0].machine}"
        found, ms = most_promising(report, _about(held, report, narrowing=True), held)
        yield Candidate(words, _KERNELS, condition, found, ms, changes_model=True)


def backend_rows(report: Report, facts: MachineFacts) -> Iterator[Row]:
    """VLLM's own kernels that are known to run here beside those that ran."""
    for option in dict.fromkeys(OPTIONS.values()):
        parts = tuple(part for part, of in OPTIONS.items() if of == option)
        held = _held(parts, report)
        if not held:
            why = "the model has no such layer"
            yield LeftOut(option, "backends", why if report.modules else _UNTOLD)
            continue
        others = [found for part in held if (found := other_backends(report, part))]
        tried: dict[str, str] = {}
        for found in others:
            for value in found.values:
                tried.setdefault(value, f"{found.stored} weights")
        for value, of in tried.items():
            of = "this attention" if option == "--attention-backend" else of
            condition = f"vLLM has it for {of} on compute capability {facts.capability}"
            finding, ms = most_promising(report, _about(held, report), held)
            yield Candidate(f"{option}={value}", "backends", condition, finding, ms)
        formats = {found.stored for found in others} - {"bf16" if len(others) > 1 else ""}
        yield from _not_tried(option, tried, formats, report, facts)


def _not_tried(
    option: str, tried: Mapping[str, str], formats: set[str], report: Report, facts: MachineFacts
) -> Iterator[LeftOut]:
    """The other values of an option, one line for all that have the same reason."""
    rows = [row for row in known_backends.BACKENDS if row.option == option]
    version = version_of(facts.vllm)
    values = [*BACKENDS.get(option, ()), *(row.value for row in rows)]
    ran = {
        choice.family for row in (report.audit.rows if report.audit else ())
        for witness in row.witnesses if witness.who == "engine"
        if OPTIONS.get(row.layer) == option and (choice := known_backends.choice_of(witness.kernel))
    }  # fmt: skip
    attention = {row.kernel for row in report.modules if row.component == "attention"} - {""}
    what = f"{' or '.join(sorted(formats - {''})) or 'these'} weights"
    foreign = {value: why for names, why in FOREIGN.items() for value in names.split()}
    for value in dict.fromkeys(values):
        if value in tried or value == "auto":
            continue
        own = [row for row in rows if row.value == value and formats & {*row.stored.split()}]
        here = [
            row for row in own
            if row in known_backends.backends_for(
                option, next(iter(formats & {*row.stored.split()})), _number(facts), version[:2])
        ]  # fmt: skip
        choice = known_backends.choice_of(value)
        runs = here and choice and choice.family in ran
        if value in foreign:
            why = foreign[value]
        elif runs or any(row.implementation in attention for row in rows if row.value == value):
            why = "it is what runs"
        elif here:
            why = "it would quantize activations, which this checkpoint does not ask for"
        elif own and facts.capability:
            why = f"vLLM has it for {what} on other GPUs than compute capability {facts.capability}"
        elif not facts.capability:
            why = "it needs a GPU"
        else:
            why = f"it is not known to run {what} in vLLM {facts.vllm} here"
        yield LeftOut(f"{option}={value}", "backends", why)


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
        if set(finding.components) & set(components) and (finding.id in NARROWING) is narrowing
    ]


def _held(components: tuple[str, ...], report: Report) -> tuple[str, ...]:
    return tuple(part for part in components if any(m.component == part for m in report.modules))


def _is_measured(facts: MachineFacts) -> bool:
    """Whether any kernel of this package was measured on the GPU's architecture."""
    here = f"sm_{facts.capability.replace('.', '')}"
    return any(run.architecture.rstrip("af") == here for run in known_runs())


def _number(facts: MachineFacts) -> float | None:
    try:
        return float(facts.capability)
    except ValueError:
        return None

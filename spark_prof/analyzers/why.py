"""Why one checkpoint or run decodes faster: bytes, lower bound, kernel and precision."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_prof.analyzers.answers import written_time
from spark_prof.analyzers.ceilings.ceiling_rows import Question, WeightsOfModel
from spark_prof.analyzers.ceilings.checkpoint_ceilings import Change, changed, step_of
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.ceilings.config import Config
from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.fallbacks.causes import FIRST_WITH
from spark_prof.analyzers.finding import Finding
from spark_prof.analyzers.findings.rule import runs_eagerly
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import GAPS
from spark_prof.rules.gpus import Gpu
from spark_prof.traces.checkpoint import Checkpoint

_NARROW = {"nvfp4": "fp4", "mxfp4": "fp4", "fp8": "fp8", "mxfp8": "fp8", "int8": "int8"}
_WEIGHT_ONLY = {"int4", "nf4"}
_WAITS = ("eager-mode", "host-gaps", "scheduler-gaps", "idle-gpu")  # findings about these gaps
_SAME = 0.01  # of a time: sides that are less apart take the same
_KV, _STATE = "kv", "state"
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LIKE = 0.02
"""Of a recording's bytes: a checkpoint that differs by less is taken to be the recorded one."""


@dataclass(frozen=True)
class Part:
    """What one component costs a token."""

    component: str
    format: str  # of its weights, several with a plus between them
    bytes: float  # that a decode step reads of its weights
    bound_us: float  # reading them, at the GPU's bandwidth
    us: float | None  # what was measured; None of a checkpoint
    kernel: str  # with the most time, or of a checkpoint empty
    computes_in: str  # as it ran, or of a checkpoint what is expected

    @property
    def of_bound(self) -> float | None:
        """The bound's share of what was measured."""
        return self.bound_us / self.us if self.us else None


@dataclass(frozen=True)
class Side:
    """A checkpoint, or a recording of one."""

    name: str
    measured: bool  # whether it is a recording
    parts: tuple[Part, ...]
    us: float | None  # a typical decode step; None of a checkpoint
    eager: bool = False  # whether the host launched each kernel of it
    model: tuple[str, int, int] = ("", 0, 0)  # architecture, layers and hidden size; 0 is unknown

    @property
    def waits_us(self) -> float:
        """What its kernels wait for launches and for the host."""
        return sum(part.us or 0.0 for part in self.parts if part.component in GAPS)

    @property
    def kernels_us(self) -> float:
        """Its kernels and copies alone."""
        return (self.us or 0.0) - self.waits_us

    @property
    def bytes(self) -> float:
        """Weights that a decode step reads."""
        return sum(part.bytes for part in self.parts)

    @property
    def bound_us(self) -> float:
        """The lower bound of a decode step by its weights."""
        return sum(part.bound_us for part in self.parts)

    def part(self, component: str) -> Part | None:
        """What that component costs; None where it has no weights and took no time."""
        return next((part for part in self.parts if part.component == component), None)


@dataclass(frozen=True)
class WhatIf:
    """A checkpoint with its weights in another format."""

    title: str
    bytes: float
    bound_us: float


@dataclass(frozen=True)
class Next:
    """What to type next."""

    text: str  # before the command
    command: str


@dataclass(frozen=True)
class Why:
    """The sides, beside one GPU's bandwidth."""

    gpu: str
    bandwidth: float  # bytes per second
    source: str  # of the bandwidth
    sides: tuple[Side, ...]
    what_ifs: tuple[WhatIf, ...]  # of the first checkpoint
    answer: tuple[str, ...]  # a sentence or two
    next: Next


def side_of_checkpoint(checkpoint: Checkpoint, name: str, gpu: Gpu, question: Question) -> Side:
    """What a checkpoint will read in a decode step, and how its products are expected to run."""
    bandwidth = gpu.bandwidth.value
    rows = (row for row in step_of(weights_of(checkpoint), question).rows if row.read)
    read, formats = _by_component(
        (row.component, row.format, row.read) for row in rows if row.format not in (_KV, _STATE)
    )
    parts = [
        Part(
            component,
            " + ".join(formats[component]),
            size,
            size / bandwidth * 1e6,
            None,
            "",
            " + ".join(dict.fromkeys(expected(form, gpu) for form in formats[component])),
        )
        for component, size in read.items()
    ]
    parts = sorted(parts, key=lambda part: -part.bytes)
    return Side(name, False, tuple(parts), None, model=_model(checkpoint.config))


def _by_component(
    weights: Iterable[tuple[str, str, float]],
) -> tuple[Mapping[str, float], Mapping[str, Mapping[str, None]]]:
    """Bytes and formats of each component, of weights by component, format and bytes."""
    sizes: dict[str, float] = defaultdict(float)
    formats: dict[str, dict[str, None]] = defaultdict(dict)
    for component, form, size in weights:
        sizes[component] += size
        formats[component][form] = None
    return sizes, formats


def _model(config: Mapping[str, Any], name: str = "") -> tuple[str, int, int]:
    """Architecture, layers and hidden size of a configuration; else what a model's name tells."""
    read, listed = Config(config), config.get("architectures")
    words = listed if isinstance(listed, list) else re.findall(r"\w+For[A-Z]\w+", name)
    return str(words[0]) if words else "", read.layers, read.hidden


def expected(form: str, gpu: Gpu) -> str:
    """The precision in which products of weights of a format can run on a GPU.

        expected("nvfp4", H100) == "bf16 (weights only)"

    vLLM may choose otherwise: what ran is in a recording.
    """
    too_old = float(gpu.compute_capability) < FIRST_WITH.get(form, 0.0)
    return "bf16 (weights only)" if form in _WEIGHT_ONLY or too_old else _NARROW.get(form, form)


def side_of_recording(
    report: Report, name: str, gpu: Gpu, config: Mapping[str, Any] | None = None
) -> Side:
    """What a recorded decode step read and took, component by component.

    Args:
        config: the model's, as Hugging Face writes it, where the recording has it.
    """
    bandwidth = gpu.bandwidth.value
    ledger = report.decode_ledger
    sizes, formats = _by_component(
        (row.component, _SHORT.get(row.dtype, row.dtype), row.bytes) for row in report.streamed
    )
    names = dict.fromkeys([*sizes, *(row.name for row in (ledger.rows if ledger else ()))])
    parts = []
    for component in names:
        kernels = [k for k in report.kernels if k.component == component and k.decode_us]
        most = max(kernels, key=lambda kernel: kernel.decode_us, default=None)
        size = sizes.get(component, 0.0)
        us = ledger.us(component) if ledger else None
        if not size and not us:
            continue
        parts.append(
            Part(
                component,
                " + ".join(formats.get(component, {})),
                size,
                size / bandwidth * 1e6,
                us,
                short_name(most.name) if most else "",
                (most.precision or "") if most else "",
            )
        )
    ordered = tuple(sorted(parts, key=lambda part: -(part.us or part.bound_us)))
    model = _model(config or {}, report.run.model)
    return Side(
        name, True, ordered, ledger.step_us if ledger else None, runs_eagerly(report), model
    )


_MIXERS = frozenset({"qkv", "o_proj", "ssm", "attention"})
_LAYERS = frozenset({"mlp", "shared_experts", "experts"})
_CHOICES = (
    ("", _LAYERS),
    (" and attention", _LAYERS | _MIXERS),
    (", attention and lm_head", _LAYERS | _MIXERS | {"lm_head"}),
)
_FORMATS = (("FP8", "fp8"), ("INT4 (AWQ)", "int4"), ("NVFP4", "nvfp4"), ("MXFP4", "mxfp4"))


def what_ifs(checkpoint: Checkpoint, gpu: Gpu, question: Question) -> Iterator[WhatIf]:
    """The checkpoint with its layers in each format, with attention and lm_head or without."""
    bandwidth = gpu.bandwidth.value
    model = weights_of(checkpoint)
    seen: set[float] = set()
    plain = _in_format(model, "BF16", "bf16", _CHOICES[-1][1])
    for name, form in _FORMATS:
        for words, components in _CHOICES:
            size = _read(_in_format(plain, name, form, components), question)
            if size not in seen:
                seen.add(size)
                yield WhatIf(f"{name}: layers{words}", size, size / bandwidth * 1e6)


def _in_format(
    model: WeightsOfModel, title: str, form: str, components: frozenset[str]
) -> WeightsOfModel:
    return changed(model, Change(form, title, components, form, widens=True)) or model


def _read(model: WeightsOfModel, question: Question) -> float:
    rows = step_of(model, question).rows
    return sum(row.read for row in rows if row.format not in (_KV, _STATE))


def answer_of(sides: Sequence[Side], gpu: Gpu) -> Iterator[str]:
    """What tells the sides apart: bytes first, then the component with most beyond its bound."""
    first, *others = sides
    if not others:
        yield (
            f"{first.name} reads {first.bytes / 1e9:.2f} GB of weights a token: at best "
            f"{first.bound_us / 1e3:.2f} ms on {gpu.name}, {_rate(first.bound_us)} tokens/s."
        )
    for other in others:
        if unlike := _unlike(first, other):
            yield (
                f"{first.name} and {other.name} are different models ({unlike}): their times are "
                "below, but say nothing about a format or a kernel."
            )
            continue
        if untold := _untold(first, other) or _untold(other, first):
            yield (
                f"{untold}: bytes are not compared. The tables have what {first.name} and "
                f"{other.name} take."
            )
            continue
        yield _of_bytes(first, other, gpu)
        if first.us and other.us:
            yield _of_time(first, other)


def _untold(a: Side, b: Side) -> str:
    """That a recording does not tell the bytes of a component that matters to the other side."""
    for part in b.parts:
        own = a.part(part.component)
        if a.measured and own and own.us and not own.bytes and part.bytes > _LIKE * b.bytes:
            return f"{a.name} does not tell which weights of {part.component} a step reads"
    return ""


def _unlike(a: Side, b: Side) -> str:
    """In what their models differ; empty where nothing tells."""
    for word, one, other in zip(("", "layers: ", "hidden size: "), a.model, b.model, strict=True):
        if one and other and one != other:
            return f"{word}{one} and {other}"
    return ""


def _of_bytes(a: Side, b: Side, gpu: Gpu) -> str:
    more = a.bytes / b.bytes - 1 if b.bytes else 0.0
    sizes = f"{a.bytes / 1e9:.2f} GB against {b.bytes / 1e9:.2f} GB"
    if abs(more) < 0.005:
        text = f"{a.name} and {b.name} read the same bytes a token ({sizes})"
    else:
        word = "more" if more > 0 else "fewer"
        text = (
            f"{a.name} reads {100 * abs(more):.0f} % {word} bytes a token than {b.name} ({sizes})"
        )
    rates = f"at most {_rate(a.bound_us)} against {_rate(b.bound_us)} tokens/s"
    most, least = (a, b) if more > 0 else (b, a)
    apart = _most_apart(most, least, lambda part: part.bytes)
    why = ""
    if apart and abs(more) >= 0.005:
        forms = [part.format if part else "none" for part in (a.part(apart), b.part(apart))]
        why = f"; most of it is {apart} ({forms[0]} against {forms[1]})"
    return f"{text}{why}. On {gpu.name} that is {rates}."


def _of_time(a: Side, b: Side) -> str:
    """The difference in time, taken apart; of kernels alone where a side ran eagerly."""
    eager = a.eager or b.eager
    slow, fast = sorted((a, b), key=lambda side: -_compared_us(side, eager))
    taken, least = _compared_us(slow, eager), _compared_us(fast, eager)
    by_bytes = slow.bound_us - fast.bound_us
    waits = 0.0 if eager else slow.waits_us - fast.waits_us
    beyond = taken - least - by_bytes - waits
    causes = [("bytes", by_bytes), ("kernels beyond their bytes", beyond)]
    if not eager:
        causes.append(("waiting for launches and the host", waits))
    parts = ", ".join(f"{name} {_signed(us)}" for name, us in sorted(causes, key=lambda c: -c[1]))
    times = f"({written_time(taken)} against {written_time(least)})"
    kernels = "'s kernels" if eager else ""
    text = f"{slow.name}{kernels} take{'' if eager else 's'} {written_time(taken - least)} longer"
    text += f" a token {times}: {parts}."
    if taken - least < _SAME * taken:
        text = f"{slow.name}{kernels} and {fast.name}{kernels} take the same time a token {times}."
    # The kernels that fall short are the faster side's where its bytes promise more than it gained.
    owner, other = (slow, fast) if beyond > 0 else (fast, slow)
    part = owner.part(_most_apart(owner, other, _beyond))
    if part and part.us and abs(beyond) > _SAME * taken:
        known = part.of_bound is not None and part.of_bound > _SAME
        at = f" at {100 * (part.of_bound or 0):.0f} % of the bandwidth" if known else ""
        kernel = f" ({part.kernel}{at})" if part.kernel else ""
        where = part.component.replace("_", " ")
        text += f" Most of the kernels' part is {owner.name}'s {where}{kernel}."
    if eager and a.us and b.us:
        whole = [
            f"{side.name} {written_time(side.us or 0.0)} ({written_time(side.waits_us)} waiting)"
            for side in (a, b)
        ]
        mostly = abs(a.waits_us - b.waits_us) > abs(a.kernels_us - b.kernels_us)
        text += (
            f" Launches are left out of that as a side ran eagerly; with them {', '.join(whole)}"
            f"{': most of that difference is launches' if mostly else ''}."
        )
    return text


def _compared_us(side: Side, eager: bool) -> float:
    return side.kernels_us if eager else side.us or 0.0


def _beyond(part: Part) -> float:
    return 0.0 if part.component in GAPS else (part.us or 0.0) - part.bound_us


def _signed(us: float) -> str:
    return f"{'-' if us < 0 else '+'}{written_time(abs(us))}"


def next_of(
    sides: Sequence[Side], findings: Sequence[Sequence[Finding]], sources: Sequence[str]
) -> Next:
    """One command that takes the answer further.

    Args:
        findings: of each side, those that a report of it has; none of a checkpoint.
        sources: what each side was named by.
    """
    known = [side for side in sides if side.us]
    for side, source in zip(sides, sources, strict=True):
        recorded = any(abs(side.bytes / o.bytes - 1) < _LIKE for o in known if o.bytes)
        if not side.measured and not recorded:
            name = shlex.quote(f"{Path(side.name).name}-run")
            return Next(
                f"Next, record {side.name}; no checkpoint tells what kernels and launches take:",
                f"spark-prof record -o {name} -- vllm serve {shlex.quote(source)}",
            )
    ordered = sorted(known, key=lambda side: side.us or 0.0) or [*sides]
    slow, fast = next((side for side in known if side.eager), ordered[-1]), ordered[0]
    found = [one for one in findings[sides.index(slow)] if " ab " in one.command]
    cause = _most_apart(slow, fast, lambda part: (part.us or 0.0) - part.bound_us)
    waits = slow.eager or cause in GAPS
    about = [one for one in found if one.id in _WAITS if waits] or [
        one for one in found if cause in one.components
    ]
    for one in about or found:
        gain = (
            f", at most {written_time(1e3 * one.ms_per_token)} a token" if one.ms_per_token else ""
        )
        return Next(f"Next, for {slow.name} ({one.id}{gain}):", one.command)
    names = [shlex.quote(sources[sides.index(side)]) for side in (fast, slow)]
    if slow is fast:
        return Next("Next, what to change:", f"spark-prof report {names[0]}")
    return Next(
        "Next, layer by layer and kernel by kernel:", f"spark-prof compare {' '.join(names)}"
    )


def _most_apart(a: Side, b: Side, figure: Callable[[Part], float]) -> str:
    names = dict.fromkeys(part.component for side in (a, b) for part in side.parts)

    def difference(name: str) -> float:
        values = [figure(part) if (part := side.part(name)) else 0.0 for side in (a, b)]
        return values[0] - values[1]

    return max(names, key=difference, default="")


def _rate(us: float) -> str:
    return f"{1e6 / us:,.0f}" if us else "-"

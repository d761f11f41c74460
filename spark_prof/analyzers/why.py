"""Why one checkpoint or run decodes faster: bytes, lower bound, kernel and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_prof.analyzers.ceilings.ceiling_rows import Question, WeightsOfModel
from spark_prof.analyzers.ceilings.checkpoint_ceilings import Change, changed, step_of
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.classify.classifier import short_name
from spark_prof.analyzers.findings.rule import runs_eagerly
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.step_time import HOST, LAUNCH_GAPS
from spark_prof.rules.gpus import Gpu
from spark_prof.traces.checkpoint import Checkpoint

_NARROW = {"nvfp4": "fp4", "mxfp4": "fp4", "fp8": "fp8", "mxfp8": "fp8", "int8": "int8"}
_SINCE = {"fp4": 10.0, "fp8": 8.9}
"""Compute capability from which tensor cores multiply a precision."""
_WEIGHT_ONLY = {"int4", "nf4"}
_GAPS = (LAUNCH_GAPS, HOST)
_KV, _STATE = "kv", "state"


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

    @property
    def kernels_us(self) -> float:
        """Its kernels alone, without what waits for the host."""
        return sum(part.us or 0.0 for part in self.parts if part.component not in _GAPS)

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
class Why:
    """The sides, beside one GPU's bandwidth."""

    gpu: str
    bandwidth: float  # bytes per second
    source: str  # of the bandwidth
    sides: tuple[Side, ...]
    what_ifs: tuple[WhatIf, ...]  # of the first checkpoint
    answer: tuple[str, ...]  # a sentence or two


def bandwidth_of(gpu: Gpu) -> tuple[float, str]:
    """What a kernel that reads reaches on a GPU, else its data sheet, and who says so."""
    found = gpu.read_bandwidth or gpu.memory_bandwidth
    return found.value, found.source


def side_of_checkpoint(checkpoint: Checkpoint, name: str, gpu: Gpu, question: Question) -> Side:
    """What a checkpoint will read in a decode step, and how its products are expected to run."""
    bandwidth, _ = bandwidth_of(gpu)
    read: dict[str, float] = {}
    formats: dict[str, dict[str, None]] = {}
    for row in step_of(weights_of(checkpoint), question).rows:
        if row.format in (_KV, _STATE) or not row.read:
            continue
        read[row.component] = read.get(row.component, 0.0) + row.read
        formats.setdefault(row.component, {})[row.format] = None
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
    return Side(name, False, tuple(sorted(parts, key=lambda part: -part.bytes)), None)


def expected(form: str, gpu: Gpu) -> str:
    """The precision in which products of weights of a format can run on a GPU.

        expected("nvfp4", H100) == "bf16 (weights only)"

    vLLM may choose otherwise: what ran is in a recording.
    """
    if form in _WEIGHT_ONLY:
        return "bf16 (weights only)"
    precision = _NARROW.get(form, form)
    can = float(gpu.compute_capability) >= _SINCE.get(precision, 0.0)
    return precision if can else "bf16 (weights only)"


def side_of_recording(report: Report, name: str, gpu: Gpu) -> Side:
    """What a recorded decode step read and took, component by component."""
    bandwidth, _ = bandwidth_of(gpu)
    ledger = report.decode_ledger
    weights = report.roofline.weights if report.roofline else ()
    sizes: dict[str, float] = {}
    formats: dict[str, dict[str, None]] = {}
    for row in weights:
        sizes[row.component] = sizes.get(row.component, 0.0) + row.bytes
        formats.setdefault(row.component, {})[row.dtype] = None
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
    return Side(name, True, ordered, ledger.step_us if ledger else None, runs_eagerly(report))


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
    bandwidth, _ = bandwidth_of(gpu)
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
        yield _of_bytes(first, other, gpu)
        if first.us and other.us:
            yield _of_time(first, other)


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
    """The difference in time; of kernels alone where a side ran eagerly, as no server would."""
    eager = a.eager or b.eager
    times = {side.name: side.kernels_us if eager else side.us or 0.0 for side in (a, b)}
    slow, fast = (a, b) if times[a.name] >= times[b.name] else (b, a)
    taken, least = times[slow.name], times[fast.name]
    longer, by_bytes = taken - least, slow.bound_us - fast.bound_us
    # Where bytes promise more than was measured, the faster side's kernels fall short.
    owner, other = (fast, slow) if by_bytes > longer else (slow, fast)
    if by_bytes > longer:
        because = (
            f"; its bytes alone would make that {by_bytes / 1e3:.2f} ms, and {fast.name} falls "
            f"{(by_bytes - longer) / 1e3:.2f} ms short of it"
        )
    elif by_bytes > 0:
        because = f", of which its bytes explain {by_bytes / 1e3:.2f} ms"
    else:
        because = ", none of which its bytes explain"
    what = f"{slow.name}'s kernels take" if eager else f"{slow.name} takes"
    text = (
        f"{what} {longer / 1e3:.2f} ms longer a token ({taken / 1e3:.2f} against "
        f"{least / 1e3:.2f} ms){because}"
    )
    launches = ""
    if eager and a.us and b.us:
        launches = (
            f" Launches are left out of that as a side ran eagerly: with them {a.name} takes "
            f"{a.us / 1e3:.2f} ms a token, {b.name} {b.us / 1e3:.2f} ms."
        )

    def beyond(part: Part) -> float:
        return 0.0 if eager and part.component in _GAPS else (part.us or 0.0) - part.bound_us

    part = owner.part(_most_apart(owner, other, beyond))
    if part is None or not part.us:
        return f"{text}.{launches}"
    at = f" at {100 * part.of_bound:.0f} % of the bandwidth" if part.bytes and part.of_bound else ""
    kernel = f" ({part.kernel}{at})" if part.kernel else ""
    where = part.component.replace("_", " ")
    return f"{text}. Most of the rest is {owner.name}'s {where}{kernel}.{launches}"


def _most_apart(a: Side, b: Side, figure: Callable[[Part], float]) -> str:
    """The component of which `a` has most more than `b`."""
    names = dict.fromkeys(part.component for side in (a, b) for part in side.parts)

    def difference(name: str) -> float:
        values = [figure(part) if (part := side.part(name)) else 0.0 for side in (a, b)]
        return values[0] - values[1]

    return max(names, key=difference, default="")


def _rate(us: float) -> str:
    return f"{1e6 / us:,.0f}" if us else "-"

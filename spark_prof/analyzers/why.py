"""Why one checkpoint or run decodes faster: bytes, lower bound, kernel and precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_prof.analyzers.answers import written_time
from spark_prof.analyzers.ceilings.ceiling_rows import Question, WeightsOfModel
from spark_prof.analyzers.ceilings.checkpoint_ceilings import FormatChange, changed
from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.finding import Finding, TypedCommand, command, source_word
from spark_prof.analyzers.measured_gap import Gap, gap_of
from spark_prof.analyzers.step_time import GAPS
from spark_prof.analyzers.why_sides import ComponentCost, WhySide, parts_of_weights, resident_bytes
from spark_prof.rules.gpus import Gpu
from spark_prof.traces.checkpoint import Checkpoint

_WAITS = ("eager-mode", "host-gaps", "scheduler-gaps", "idle-gpu")  # findings about these gaps
_SAME = 0.01  # of a time: sides that are less apart take the same
_LIKE = 0.02
"""Of a recording's bytes: a checkpoint that differs by less is taken to be the recorded one."""


@dataclass(frozen=True)
class WhatIf:
    """A checkpoint with its weights in another format."""

    title: str
    bytes: float
    bound_us: float
    fits: bool = True  # whether it is in the memory of the GPUs


@dataclass(frozen=True)
class Next:
    """What to type next."""

    text: str  # before the command
    command: TypedCommand
    recorded_as: str = ""  # what the file says in place of one, as a finding's


@dataclass(frozen=True)
class Why:
    """The sides, beside one GPU's bandwidth."""

    gpu: str
    bandwidth: float  # bytes per second
    source: str  # of the bandwidth
    sides: tuple[WhySide, ...]
    what_ifs: tuple[WhatIf, ...]  # of the first checkpoint
    answer: tuple[str, ...]  # a sentence or two
    next: Next
    gaps: tuple[Gap, ...] = ()  # of the first side and each other one, where both were measured
    experts_hit: bool = False  # whether the bytes hang on how many experts a batch hits


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
    model = weights_of(checkpoint)
    sizes: set[float] = set()
    plain = _in_format(model, "BF16", "bf16", _CHOICES[-1][1])
    for name, form in _FORMATS:
        for words, components in _CHOICES:
            other = _in_format(plain, name, form, components)
            parts = parts_of_weights(other, gpu, question)
            size = sum(part.bytes for part in parts)
            if size not in sizes:
                sizes.add(size)
                bound = sum(part.bound_us for part in parts)
                fits = resident_bytes(other, question) <= gpu.memory_bytes
                yield WhatIf(f"{name}: layers{words}", size, bound, fits)


def _in_format(
    model: WeightsOfModel, title: str, form: str, components: frozenset[str]
) -> WeightsOfModel:
    return changed(model, FormatChange(form, title, components, form, widens=True)) or model


def answer_of(sides: Sequence[WhySide], gpu: Gpu) -> Iterator[str]:
    """What tells the sides apart: bytes first, then the component with most beyond its bound."""
    first, *rest = sides
    yield from filter(None, (_too_large(side, gpu) for side in sides))
    if not rest and (untold := _without_weights(first)):
        yield f"{untold}: its lower bound is not known. The tables have what it takes."
    elif not rest:
        step = "step" if (first.batch or 2) > 1 else "token"
        each_gpu = f" from each of {first.ranks} GPUs" if first.ranks > 1 else ""
        yield (
            f"{first.name} reads {first.bytes / 1e9:.2f} GB of weights a {step}{each_gpu}: at best "
            f"{first.bound_us / 1e3:.2f} ms on {gpu.name}, {_rate(first)} tokens/s."
        )
    for other in rest:
        if unlike := _unlike(first, other):
            yield (
                f"{first.name} and {other.name} are different models ({unlike}): their times are "
                "below, but say nothing about a format or a kernel."
            )
            continue
        if unequal := _unequal(first, other):
            yield f"{unequal}: what a step takes is of other work on each; the tables have both."
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


_FULL = 0.9  # of a GPU's memory: with more than that weights leave no room for a KV cache


def _too_large(side: WhySide, gpu: Gpu) -> str:
    """Says that a checkpoint does not fit into the GPUs, or hardly; empty where it does."""
    memory = side.memory
    if memory is None or memory.bytes <= _FULL * memory.gpu_bytes:
        return ""
    sizes = f"{memory.bytes / 1e9:.1f} GB", f"{memory.gpu_bytes / 1e9:.0f} GB of memory"
    every = f"each of {side.ranks} {gpu.name}" if side.ranks > 1 else gpu.name
    if memory.fits:
        return (
            f"{side.name} takes {sizes[0]} of the {sizes[1]} of {every}: little is left for the "
            "KV cache."
        )
    enough = (
        f"--tensor-parallel {memory.fitting} would hold it"
        if memory.fitting
        else "16 of them do not hold it either"
    )
    return f"{side.name} does not fit: it takes {sizes[0]}, {every} has {sizes[1]}; {enough}."


def bytes_known(a: WhySide, b: WhySide) -> bool:
    """Whether both sides tell what each component reads that the other one reads."""
    return not (_untold(a, b) or _untold(b, a))


def gaps_of(sides: Sequence[WhySide]) -> Iterator[Gap]:
    """The gap between the first side and each other one, where both were measured."""
    first, *rest = sides
    for other in rest:
        if gap := gap_of(first, other, bytes_known(first, other)):
            yield gap


def _without_weights(side: WhySide) -> str:
    """Says that a recording tells no bytes, as a profiler's trace; empty where it tells some."""
    if side.measured and not side.bytes:
        return f"{side.name} does not tell which weights a step reads"
    return ""


def _untold(a: WhySide, b: WhySide) -> str:
    """Says that a recording tells no bytes, or not those that matter to the other side."""
    if untold := _without_weights(a):
        return untold
    for part in b.parts:
        part_of_a = a.part(part.component)
        if (
            a.measured
            and part_of_a
            and part_of_a.us
            and not part_of_a.bytes
            and part.bytes > _LIKE * b.bytes
        ):
            return f"{a.name} does not tell which weights of {part.component} a step reads"
    return ""


def _unlike(a: WhySide, b: WhySide) -> str:
    """How the models of both sides differ; empty where nothing tells."""
    for word, one, other in zip(("", "layers: ", "hidden size: "), a.model, b.model, strict=True):
        if one and other and one != other:
            return f"{word}{one} and {other}"
    return ""


def _unequal(a: WhySide, b: WhySide) -> str:
    """Says that the steps of both sides do other work; empty where they do the same."""
    if a.batch and b.batch and a.batch != b.batch:
        return (
            f"{a.name} decodes {a.batch} sequences at a time and {b.name} {b.batch} (--batch N "
            "asks for N)"
        )
    if a.ranks != b.ranks:
        return f"{a.name} is on {a.ranks} GPUs of tensor parallelism and {b.name} on {b.ranks}"
    return ""


def _of_bytes(a: WhySide, b: WhySide, gpu: Gpu) -> str:
    excess = a.bytes / b.bytes - 1 if b.bytes else 0.0
    sizes = f"{a.bytes / 1e9:.2f} GB against {b.bytes / 1e9:.2f} GB"
    step = "token" if (a.batch, b.batch) == (1, 1) or a.measured or b.measured else "step"
    if abs(excess) < 0.005:
        text = f"{a.name} and {b.name} read the same bytes a {step} ({sizes})"
    else:
        word = "more" if excess > 0 else "fewer"
        share = f"{100 * abs(excess):.0f} %"
        text = f"{a.name} reads {share} {word} bytes a {step} than {b.name} ({sizes})"
    rates = f"at most {_rate(a)} against {_rate(b)} tokens/s"
    most, least = (a, b) if excess > 0 else (b, a)
    apart = _most_apart(most, least, _bytes)
    why = ""
    if apart and abs(excess) >= 0.005:
        forms = [part.format if part else "none" for part in (a.part(apart), b.part(apart))]
        apart_bytes = _apart(most, least, apart, _bytes)
        against = f"({forms[0]} against {forms[1]})"
        why = f"; {_of_it(apart_bytes, abs(a.bytes - b.bytes))} is {apart} {against}"
        if apart_bytes > abs(a.bytes - b.bytes):
            # What others save cannot make a part larger than the whole.
            why = (
                f"; {most.name}'s {apart} {against} reads {apart_bytes / 1e9:.2f} GB more, the "
                "rest of it less"
            )
    on = f"each of {a.ranks} {gpu.name}" if a.ranks == b.ranks > 1 else gpu.name
    verb = "is" if a.fits and b.fits else "would be"
    return f"{text}{why}. On {on} that {verb} {rates}."


def _of_time(a: WhySide, b: WhySide) -> str:
    """The difference in time, taken apart; of kernels alone where a side ran eagerly."""
    eager = a.eager or b.eager
    slow, fast = sorted((a, b), key=lambda side: -_compared_us(side, eager))
    longest_us, least = _compared_us(slow, eager), _compared_us(fast, eager)
    by_bytes = slow.bound_us - fast.bound_us
    waits = 0.0 if eager else slow.waits_us - fast.waits_us
    beyond = longest_us - least - by_bytes - waits
    causes = [("bytes", by_bytes), ("kernels beyond their bytes", beyond)]
    if not eager:
        causes.append(("waiting for launches and the host", waits))
    parts = ", ".join(f"{name} {_signed(us)}" for name, us in sorted(causes, key=lambda c: -c[1]))
    times = f"({written_time(longest_us)} against {written_time(least)})"
    kernels = "'s kernels" if eager else ""
    text = (
        f"{slow.name}{kernels} take{'' if eager else 's'} {written_time(longest_us - least)} longer"
    )
    text += f" a token {times}: {parts}."
    if longest_us - least < _SAME * longest_us:
        text = f"{slow.name}{kernels} and {fast.name}{kernels} take the same time a token {times}."
    # The kernels that fall short are the faster side's where its bytes promise more than it gained.
    owner, other = (slow, fast) if beyond > 0 else (fast, slow)
    part = owner.part(_most_apart(owner, other, _beyond))
    if part and part.us and abs(beyond) > _SAME * longest_us:
        of_bytes = part.bound_us / part.us
        at = f" at {100 * of_bytes:.0f} % of the bandwidth" if of_bytes > _SAME else ""
        kernel = f" ({part.kernel}{at})" if part.kernel else ""
        where = f"{owner.name}'s {part.component.replace('_', ' ')}{kernel}"
        apart_us = _apart(owner, other, part.component, _beyond)
        of_it = _of_it(apart_us, abs(beyond)).capitalize().replace(" it", " the kernels' part")
        text += (
            f" {of_it} is {where}."
            if apart_us <= abs(beyond)
            else f" {where} takes {written_time(apart_us)} more, other kernels less."
        )
    if eager and a.us and b.us:
        whole = [
            f"{side.name} {written_time(side.us or 0.0)} ({written_time(side.waits_us)} waiting)"
            for side in (a, b)
        ]
        waiting, running = a.waits_us - b.waits_us, a.kernels_us - b.kernels_us
        cause = ""
        if abs(waiting) > abs(running):
            cause = ": most of that difference is launches"
            if waiting * running < 0:  # they differ by more than the whole
                cause = ": launches make that difference, kernels go the other way"
        text += (
            f" Launches are left out of that as a side ran eagerly; with them {', '.join(whole)}"
            f"{cause}."
        )
    return text


def _compared_us(side: WhySide, eager: bool) -> float:
    return side.kernels_us if eager else side.us or 0.0


def _bytes(part: ComponentCost) -> float:
    return part.bytes


def _beyond(part: ComponentCost) -> float:
    return 0.0 if part.component in GAPS else (part.us or 0.0) - part.bound_us


def _signed(us: float) -> str:
    return f"{'-' if us < 0 else '+'}{written_time(abs(us))}"


def next_of(
    sides: Sequence[WhySide], findings: Sequence[Sequence[Finding]], sources: Sequence[str]
) -> Next:
    """One command that takes the answer further.

    Args:
        findings: of each side, those that a report of it has; none of a checkpoint.
        sources: what each side was named by.
    """
    timed = [side for side in sides if side.us]
    for side, source in zip(sides, sources, strict=True):
        recorded = any(abs(side.bytes / o.bytes - 1) < _LIKE for o in timed if o.bytes)
        if not side.measured and not recorded:
            name = f"{Path(side.name).name}-run"
            return Next(
                f"Next, record {side.name}; the time of kernels and launches is in no checkpoint:",
                command(
                    "spark-prof", "record", "-o", source_word(name), "--", "vllm", "serve",
                    source_word(source),
                ),
            )  # fmt: skip
    ordered = sorted(timed, key=lambda side: side.us or 0.0) or [*sides]
    slow, fast = next((side for side in timed if side.eager), ordered[-1]), ordered[0]
    experiments = [
        one for one in findings[sides.index(slow)] if one.action and one.action.verb == "ab"
    ]
    cause = _most_apart(slow, fast, lambda part: (part.us or 0.0) - part.bound_us)
    waits = slow.eager or cause in GAPS
    about = [one for one in experiments if one.id in _WAITS if waits] or [
        one for one in experiments if cause in one.components
    ]
    for one in about or experiments:
        gain = (
            f", at most {written_time(1e3 * one.ms_per_token)} a token" if one.ms_per_token else ""
        )
        return Next(f"Next, for {slow.name} ({one.id}{gain}):", one.command, one.recorded_as)
    names = [source_word(sources[sides.index(side)]) for side in (fast, slow)]
    if slow is fast:
        return Next("Next, what to change:", command("spark-prof", "report", names[0]))
    return Next(
        "Next, layer by layer and kernel by kernel:", command("spark-prof", "compare", *names)
    )


def _most_apart(a: WhySide, b: WhySide, figure: Callable[[ComponentCost], float]) -> str:
    names = dict.fromkeys(part.component for side in (a, b) for part in side.parts)

    return max(names, key=lambda name: _apart(a, b, name, figure), default="")


def _apart(a: WhySide, b: WhySide, name: str, figure: Callable[[ComponentCost], float]) -> float:
    """By how much a component's figure is larger on side a."""
    values = [figure(part) if (part := side.part(name)) else 0.0 for side in (a, b)]
    return values[0] - values[1]


def _of_it(part: float, whole: float) -> str:
    """Says whether the largest part is most of the whole."""
    return "most of it" if part > whole / 2 else "the largest part of it"


def _rate(side: WhySide) -> str:
    """The most tokens that all sequences of a side can get in a second."""
    return f"{1e6 * (side.batch or 1) / side.bound_us:,.0f}" if side.bound_us else "-"

"""The comparison of two sides as one pure function, and in what their set-ups differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from spark_prof.analyzers.comparing.comparison import (
    ComparedRecording,
    Comparison,
    SetupDifference,
    side_names,
)
from spark_prof.analyzers.comparing.noise import FEWEST
from spark_prof.analyzers.comparing.obstacles import obstacle_of, other_model
from spark_prof.analyzers.comparing.phases import Sides, compare_phase
from spark_prof.analyzers.comparing.swapped_steps import stable_name
from spark_prof.analyzers.findings.rule import runs_eagerly
from spark_prof.analyzers.views.layer_cells import KernelColumns
from spark_prof.arrays import Int64s
from spark_prof.errors import CommandError
from spark_prof.traces.swapped import SWAPS

_GROUPS: Mapping[str, str] = {
    **dict.fromkeys(("spark_prof", "backend"), "recording"),
    **dict.fromkeys(("vllm", "torch", "cuda", "python", "driver", "gpu.driver"), "versions"),
    **dict.fromkeys(("gpu", "device_after_steps", "machine", "host"), "GPU"),
    **dict.fromkeys(("model", "model_config", "quantization", "dtype"), "model"),
    "environment": "environment",
}
"""The group of each fact by its name or its first word; every other one is of the engine."""

_ORDER = ("GPU", "versions", "model", "engine", "environment", "command", "recording")

_NOT_COMPARED = re.compile(
    r"^(?:process|pid|run|boot|rank|time_ns|monotonic_ns"
    r"|gpu\.temperature_c|device_after_steps\.(?:temperature_c|power_w)"
    # The checkpoint's configuration is compared once, as model_config.
    r"|engine_config\.model_config\.(?:hf_config|hf_text_config|hf_image_processor_config)"
    r"|model_config\.(?:_name_or_path|transformers_version)"
    # Folders of caches carry hashes and random names.
    r"|.*(?:instance_id|cache_dir|_CACHE_DIR|_CACHE_ROOT|cache_root|compilation_time"
    r"|debug_dump_path|local_cache_dir|traced_files|enabled_custom_ops|disabled_custom_ops"
    r"|static_forward_context|static_all_moe_layers)(?:\..*)?)$"
)
"""Facts that differ between any two recordings, or that repeat others."""

_OF_A_START = re.compile(
    r"^device_after_steps\.|.*(?:_mhz|memory_used|memory_free|num_gpu_blocks|num_cpu_blocks"
    r"|kv_cache_size_tokens|kv_cache_max_concurrency|kv_cache_memory_bytes|_port|_ip|_address)$"
)
"""Settings that an engine chooses anew at every start of the same thing."""

_MOST = 200
_MOST_TOLD = 4
_OTHER_BATCHES = 0.5
"""Share of the decode steps that ran at other batch sizes from which on a load is another one."""
_LONGEST = 400
_DEEPEST = 8
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


def setup_differences(a: ComparedRecording, b: ComparedRecording) -> tuple[SetupDifference, ...]:
    """Every setting whose value differs, by group; at most 200."""
    ours, theirs = _settings(a), _settings(b)
    settings = [
        SetupDifference(
            _GROUPS.get(name) or _GROUPS.get(name.partition(".")[0], "engine"),
            name,
            ours.get(name, ""),
            theirs.get(name, ""),
        )
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name, "") != theirs.get(name, "")
    ]
    settings += _command(a.report.run.command, b.report.run.command)
    ranked = sorted(settings, key=lambda setting: (_ORDER.index(setting.group), setting.name))
    return tuple(ranked[:_MOST])


def unlike(first: ComparedRecording, other: ComparedRecording) -> str:
    """In what two recordings of one side are not of the same thing; empty where they are."""
    differences = [
        f"{setting.name} ({_short_value(setting.a)} against {_short_value(setting.b)})"
        for setting in setup_differences(first, other)
        if not _OF_A_START.match(setting.name)
    ]
    a, b = (
        side.steps.loc[side.steps["phase"].astype(str) == "decode", "decode_requests"]
        for side in (first, other)
    )
    # The shares of the decode steps by batch size, the usual size first.
    a, b = a.value_counts(normalize=True), b.value_counts(normalize=True)
    if len(a) and len(b) and a.combine(b, min, 0.0).sum() < 1 - _OTHER_BATCHES:
        usual = f"mostly {a.index[0]} against {b.index[0]}"
        differences.insert(0, f"the batch size of decode steps ({usual})")
    rest = (
        f" and {len(differences) - _MOST_TOLD} more settings"
        if len(differences) > _MOST_TOLD
        else ""
    )
    return ", ".join(differences[:_MOST_TOLD]) + rest


def _short_value(value: str) -> str:
    return f"{value[:40]}..." if len(value) > 43 else value or "nothing"


def _settings(side: ComparedRecording) -> dict[str, str]:
    """All that is known of a side, as one text each name."""
    facts = {key: value for key, value in side.facts.items() if key != SWAPS}
    settings: dict[str, str] = dict(_flat("", facts, 0))
    run, gpu = side.report.run, side.report.gpu
    # A foreign trace has few facts of its own; what its report says of the run stands for them.
    reported = {
        "vllm": run.vllm,
        "torch": run.torch,
        "backend": run.backend,
        "execution": run.execution,
        "gpu.name": gpu.name,
        "gpu.compute_capability": gpu.compute_capability or "",
        "swapped kernels": ", ".join(f"{s.slot}={s.kernel or '?'}" for s in run.swaps) or "none",
    }
    if not side.model:
        settings.pop("model", None)  # the name of its file
    elif "model" not in settings:
        reported["model"] = run.model
    for name, value in reported.items():
        settings.setdefault(name, value)
    return settings


def _flat(prefix: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _DEEPEST:
        for key, entry in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), entry, depth + 1)
    elif not _NOT_COMPARED.match(prefix[:_LONGEST]):
        yield prefix[:_LONGEST], _text(value)


def _text(value: Any) -> str:
    items = value if isinstance(value, list) else [value] if value is not None else []
    # What is nested deeper than any configuration is not looked at.
    texts = ("..." if isinstance(item, Mapping | list) else str(item) for item in items[:_MOST])
    return _ADDRESS.sub("0x...", ", ".join(texts))[:_LONGEST]


def _command(a: str, b: str) -> Iterator[SetupDifference]:
    """The words of the command lines that differ, if as many stand in both; else both whole."""
    if a == b:
        return
    words = [line.split() for line in (a, b)]
    if len(words[0]) != len(words[1]):
        yield SetupDifference("command", "command", a[:_LONGEST], b[:_LONGEST])
        return
    for place, (before, after) in enumerate(zip(*words, strict=True)):
        if before != after:
            option = words[0][place - 1] if place and words[0][place - 1].startswith("-") else ""
            yield SetupDifference(
                "command", option or "command", before[:_LONGEST], after[:_LONGEST]
            )


_PHASES = ("decode", "prefill", "unknown")
_MIX = 0.005  # a mix that explains a smaller share of the step is not worth a line


def compare(
    a: ComparedRecording | Sequence[ComparedRecording],
    b: ComparedRecording | Sequence[ComparedRecording],
    names: tuple[str, str] | None = None,
) -> Comparison:
    """Compares b with a, the reference: one recording, or several of the same thing.

    Args:
        names: what the two are called; by default `side_names` of their sources.
    """
    notes: list[str] = []
    recordings = [(side,) if isinstance(side, ComparedRecording) else side for side in (a, b)]
    first, second = names or side_names(
        [[recording.source for recording in side] for side in recordings]
    )
    sides = (_starts(recordings[0], first, notes), _starts(recordings[1], second, notes))
    every = (*sides[0], *sides[1])
    for side in every:
        if not side.report.accounts:
            raise CommandError(
                f"{side.source} holds sums without steps, which cannot be compared; "
                "take a recording or a trace"
            )
    if any(recording.report.failed("layers-") for recording in every):
        sides = _in_shared_layers(sides)
    stable: dict[str, int] = {}
    a_names, b_names = (
        [_stable_names(recording.kernels, stable) for recording in side] for side in sides
    )
    comparisons = (compare_phase(sides, (a_names, b_names), phase) for phase in _PHASES)
    eager = runs_eagerly(sides[0][0].report), runs_eagerly(sides[1][0].report)
    phases = tuple(
        replace(phase, obstacle=obstacle_of(sides, phase, eager)) for phase in comparisons if phase
    )
    setup = setup_differences(sides[0][0], sides[1][0])
    compared = Comparison(sides, phases, setup, (), (first, second), eager)
    if not phases:
        ours, theirs = (
            " and ".join(sorted(frozenset[str]().union(*(recording.phases for recording in side))))
            or "none"
            for side in sides
        )
        raise CommandError(
            f"{compared.a.source} and {compared.b.source} have no steps of one phase "
            f"({ours} against {theirs}); record both the same way"
        )
    return replace(compared, notes=(*_assumed(compared), *notes, *_notes(compared)))


def _stable_names(kernels: KernelColumns, stable: dict[str, int]) -> Int64s:
    """Of each name the place of its stable name among all of them, to which it is added."""
    names = [stable.setdefault(stable_name(name), len(stable)) for name in kernels.names]
    return np.array(names, np.int64)


def _in_shared_layers(sides: Sides) -> Sides:
    """The kernels of layers that not all recordings show are in none: they are no difference."""
    every = [recording for side in sides for recording in side]
    layer_sets = [
        {row.layer for row in recording.report.layers if row.layer is not None}
        for recording in every
    ]
    shared_layers = np.array(sorted(set.intersection(*layer_sets)), np.int64)

    def shared(recording: ComparedRecording) -> ComparedRecording:
        layer = np.where(
            np.isin(recording.kernels.layer, shared_layers), recording.kernels.layer, np.int16(-1)
        )
        return replace(recording, kernels=replace(recording.kernels, layer=layer))

    return tuple(map(shared, sides[0])), tuple(map(shared, sides[1]))


def _starts(
    side: Sequence[ComparedRecording], called: str, notes: list[str]
) -> tuple[ComparedRecording, ...]:
    """The recordings of a side that are of different engine starts; the notes get what is not."""
    recordings: list[ComparedRecording] = []
    for number, recording in enumerate(side, start=1):
        name = f"Recording {number} of {called} ({recording.source})"
        window = recording.steps[["begin_ns", "finish_ns"]]
        same = next(
            (
                other
                for other in recordings
                if len(window) and window.equals(other.steps[[*window]])
            ),
            None,
        )
        if same is not None:
            notes.append(f"{name} has the same steps as {same.source}: it counts once.")
            continue
        if recordings and (other := unlike(recordings[0], recording)):
            notes.append(
                f"{name} is not of the same thing as {recordings[0].source}: {other}. What these "
                "differ by counts as noise; compare like with like."
            )
        elif any(
            _process(recording) and _process(recording) == _process(other) for other in recordings
        ):
            notes.append(
                f"{name} is of the same engine start as another one of that side: how much starts "
                "differ cannot be told from these; start the engine anew for each recording."
            )
        recordings.append(recording)
    return tuple(recordings)


def _process(side: ComparedRecording) -> tuple[str, ...]:
    """What tells the engine's process from every other one; empty where nothing does."""
    identity = [str(side.facts.get(name) or "") for name in ("boot", "pid")]
    return tuple(identity) if all(identity) else ()


def _assumed(comparison: Comparison) -> Iterator[str]:
    """That nothing is known of the starts of a side, and what decides it."""
    if not comparison.assumed:
        return
    counts = [len(side) for side in comparison.sides]
    which = "One recording a side" if max(counts) == 1 else "One recording on a side"
    yield (
        f"{which}: engine starts are taken to differ by up to {100 * comparison.assumed:g} % "
        "(standard deviation); give several starts a side (spark-prof compare A1,A2,A3 B1,B2,B3) "
        "to decide smaller differences."
    )


def _notes(comparison: Comparison) -> Iterator[str]:
    a, b = comparison.a, comparison.b
    every = [recording for side in comparison.sides for recording in side]
    if len({recording.report.run.units for recording in every}) > 1:
        yield "One side is a GPU's kernels, the other a CPU engine's operators: no kernel matches."
    for recording in every:
        for text in recording.report.failed("layers-"):
            yield f"{recording.source}: {text} Nothing is compared by these layers."
    if not other_model(a, b) and any(not side.facts.get("model_config") for side in (a, b)):
        yield "Nothing in the recordings tells whether both sides ran the same model."
    sizes = [recording.report.parallel for recording in (a, b)]
    if all(sizes) and sizes[0].shape != sizes[1].shape:  # type: ignore[union-attr]
        layouts = " against ".join(layout.described for layout in sizes if layout)
        yield f"The sides are parallel in other ways: {layouts}. A rank of one does other work."
    if a.report.run.backend != b.report.run.backend:
        yield (
            f"{a.report.run.backend or 'unknown'} recorded {comparison.names[0]} and "
            f"{b.report.run.backend or 'unknown'} {comparison.names[1]}: the profiling overhead is "
            "part of the difference."
        )
    several = any(len(side) > 1 for side in comparison.sides)
    for phase in comparison.phases:
        if phase.fewest < FEWEST["median"] and not phase.obstacle:
            yield (
                f"A {'recording' if several else 'side'} has only {phase.fewest} {phase.phase} "
                f"step{'s' if phase.fewest > 1 else ''}; its interval says little, and a gate "
                f"needs {FEWEST['median']}."
            )
        if phase.obstacle:
            continue
        if not phase.alike and phase.phase == "prefill":
            where = "in all recordings" if several else "on both sides"
            yield f"No length of prompts occurs {where}: prefill steps are compared by token."
        elif abs(phase.mix_us) > _MIX * phase.whole.a:
            yield (
                f"The sides ran {phase.phase} steps of different sizes, which explains "
                f"{phase.mix_us:+.1f} us of the {phase.whole.us:+.1f} us between their medians."
            )
    yield from _left_out(comparison)
    for called, side in zip(comparison.names, comparison.sides, strict=True):
        for number, recording in enumerate(side, start=1):
            name = called if len(side) == 1 else f"{called}, recording {number}"
            clocks = recording.report.gpu.clocks
            if clocks and clocks.throttled:
                reasons = ", ".join(clocks.throttled)
                yield f"The GPU's clock was held down on {name} ({reasons})."
            if "mixed" in recording.phases:
                yield f"{name} has mixed steps, which are not compared."
    yield from _lost(comparison)


def _left_out(comparison: Comparison) -> Iterator[str]:
    """The phases that some recordings of a side have and others lack."""
    for called, side in zip(comparison.names, comparison.sides, strict=True):
        for phase in _PHASES:
            has = [phase in recording.phases for recording in side]
            if not comparison.phase(phase) and any(has) and not all(has):
                lacking = has.index(False) + 1
                yield (
                    f"Recording {lacking} of {called} has no {phase} steps: these are not compared."
                )


def _lost(comparison: Comparison) -> Iterator[str]:
    """What limits the figures of one side and not those of the other."""
    notes = [
        list(dict.fromkeys(note for recording in side for note in recording.report.notes))
        for side in comparison.sides
    ]
    for called, ours, other in zip(comparison.names, notes, notes[::-1], strict=True):
        yield from (f"{called}: {note}" for note in ours if note not in other)

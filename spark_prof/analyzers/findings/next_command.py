"""What to type next about a finding, and what after the change, from the recorded command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spark_prof.analyzers.finding import (
    NONE,
    Action,
    Finding,
    TypedCommand,
    command,
    recorded,
    source_word,
    then,
)
from spark_prof.analyzers.findings.measured_gains import (
    Gain,
    MeasuredStep,
    measured_gain,
    measured_step,
    running_family,
)
from spark_prof.analyzers.findings.other_backends import OPTIONS, other_backends
from spark_prof.analyzers.findings.rule import PASSES, runs_eagerly, runs_graphs
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_command import (
    PLACE,
    Words,
    attached_to,
    engine_words,
    in_container,
    recorded_engine,
    split,
    starting_words,
)
from spark_prof.analyzers.swapped_run import runs_already
from spark_prof.rules.finding_actions import (
    EXPORTED,
    OF_SMALL_KERNELS,
    OF_THE_MACHINE,
    OF_WIDE_WEIGHTS,
    OWN_SECTIONS,
    RECORDINGS,
    SECTIONS,
    TRIALS,
    When,
)
from spark_prof.traces.swapped import SwappedSlot

_TYPED = ("spark_prof", "mxfp4", "fp8")
"""Kernels that are this package's own: another is a file's, which nobody types for a recording."""
_INSIDE_LAYER = ("qkv", "moe", "router", "norm")
_STOCK = "stock"


def beside_swaps(action: Action, swaps: Sequence[SwappedSlot]) -> Action | None:
    """The A/B of the engine as it ran; None where it would try what runs, or cannot be typed.

    beside_swaps(Action("ab", ("--b", "moe=spark_prof")), [SwappedSlot("o", "mxfp4", 24)]).options
        == ("--a", "o=mxfp4", "--b", "o=mxfp4,moe=spark_prof")
    """
    if action.verb != "ab" or not swaps:
        return action
    if any(swap.kernel not in _TYPED for swap in swaps):
        return None
    running = {swap.slot: swap.kernel for swap in swaps}
    sides = _sides(action.options)
    a, b = (_side(running, sides.get(name, _STOCK)) for name in ("--a", "--b"))
    if a == b:
        return None
    return replace(action, options=("--a", a, "--b", b))


def _sides(options: Sequence[str]) -> Mapping[str, str]:
    """The text of each side: `--b x`, `--b=x`."""
    sides: dict[str, str] = {}
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        sides[name] = value if equals else next(words, "")
    return sides


def _side(running: Mapping[str, str], text: str) -> str:
    """What runs, and what a side tries beside it; a slot that runs another kernel keeps that."""
    new: dict[str, str] = {}
    options: list[str] = []
    for word in text.split():
        swaps = [part.partition("=") for part in word.split(",")]
        if not word.startswith("-") and all(equals for _, equals, _ in swaps):
            new |= {slot: kernel for slot, _, kernel in swaps}
        elif word != _STOCK:
            options.append(word)
    if "layer" in running:
        new = {slot: kernel for slot, kernel in new.items() if slot not in _INSIDE_LAYER}
    # In the layers that `layer` leaves to vLLM they go on; a norm beside it is refused.
    staying = {s: k for s, k in running.items() if "layer" not in new or s != "norm"}
    both = {**new, **staying} if "layer" in new else {**staying, **new, **staying}
    return " ".join([",".join(f"{slot}={kernel}" for slot, kernel in both.items()), *options])


_ROUNDS = " It rounds weights to 4 bits: compare answers."


def with_next_command(finding: Finding, report: Report, page: str) -> Finding:
    """The finding with the command that takes it further, and what is known of its gain."""
    for answer in (_kernels, _options, _again):
        proposal = answer(finding, report)
        if proposal is not None:
            action, measured = proposal
            beside = beside_swaps(action, report.run.swaps)
            if beside is None:
                continue
            action = beside
            finding = replace(finding, action=action, measured=measured)
            break
    else:
        finding = replace(finding, action=_look(finding, report, page))
        if finding.id == "small-kernels":
            finding = replace(finding, measured="No command is known that fuses them in this run.")
    return _with_commands(finding, report, page)


def _look(finding: Finding, report: Report, page: str) -> Action:
    """Where to look, as there is nothing to measure."""
    if finding.id in OF_THE_MACHINE:
        return Action("doctor")
    source = source_word(report.run.source)
    if finding.id in EXPORTED:
        return Action("export", (source, "-o", "steps.json.gz"))
    # Of a finding that only a log told there is no table.
    section = OWN_SECTIONS.get(finding.id) or SECTIONS[page]
    audit_rows = report.audit.rows if report.audit else ()
    if section == "audit" and not any(row.is_told for row in audit_rows):
        section = "recording"
    return Action("report", (source, "--section", section))


def _with_commands(finding: Finding, report: Report, page: str) -> Finding:
    """The finding with its action as a command, or as what the file says of one."""
    action = finding.action or _look(finding, report, page)
    compare = command("spark-prof", "compare", source_word(report.run.source), "after")
    again = Action("record", (*RECORDINGS.get(finding.id, ()), "-o", "after"))
    verify = then(_command(again, report) or NONE, compare)
    typed, recorded_words = _command(action, report), ""
    if typed is None:
        typed, recorded_words = NONE, _readable_command(action, report)
    typed = typed or (
        NONE if recorded_words else _command(_look(finding, report, page), report) or NONE
    )
    if action.verb in ("ab", "doctor"):
        verify = typed or verify
    return replace(finding, command=typed, verify=verify, recorded_as=recorded_words)


def _command(action: Action, report: Report) -> TypedCommand | None:
    """The command of an action; None where the engine's own words are not let through."""
    start = _start(action, report)
    if start is None:
        return None
    options = action.options
    if "--attach" in start:  # a server that runs already
        options = tuple(word for word in options if word != "--nvtx")
    return command("spark-prof", action.verb, *options, *start)


def _start(action: Action, report: Report) -> Words | None:
    """What an action's command has behind its options; None where that is not let through."""
    words = split(report.run.command)
    if action.verb == "ab":
        engine = engine_words(words, report.run.model_name)
        return ("--", *_not_eager(action, engine)) if engine else None
    if action.verb == "record":
        server = attached_to(words)
        if server:
            return ("--attach", server)
        start = starting_words(words, report.run.model_name)
        return ("--", *start) if start else None
    return ()


def _readable_command(action: Action, report: Report) -> str:
    """An action's command with the words of the file, to be read."""
    words = split(report.run.command)
    if action.verb == "ab":
        words = ("--", *_not_eager(action, recorded_engine(words, report.run.model_name)))
    elif action.verb == "record" and words and words[0] != "--attach":
        words = ("--", *words)
    return recorded(("spark-prof", action.verb, *action.options, *words))


def _not_eager(action: Action, words: Words) -> Words:
    """The words without --enforce-eager, where a side of the A/B sets it."""
    eager = "--enforce-eager"
    of_a_side = any(eager in option for option in action.options)
    return tuple(word for word in words if not (of_a_side and word == eager))


_Answer = tuple[Action, str] | None


def _kernels(finding: Finding, report: Report) -> _Answer:
    """Kernels of this package, where they were measured to be faster for these layers."""
    kernel = "mxfp4" if narrows(finding) else "spark_prof"
    small = finding.id == "small-kernels"
    step = measured_step(finding.components, report, kernel)
    gains = {
        gain.slot: gain
        for component in finding.components
        if not small or component in OF_SMALL_KERNELS
        if not runs_already(report.run.swaps, component)
        if (gain := measured_gain(component, report, kernel)) is not None
    }
    if step is not None and _can_start(report):
        text = _of_step(step, list(gains.values()), report)
        return _ab("--b", step.side), text + (_ROUNDS if narrows(finding) else "")
    if not gains or not _can_start(report):
        return None
    side = ",".join(f"{slot}={kernel}" for slot in gains)
    text = _of_gains(list(gains.values()), briefly=small)
    if narrows(finding):
        text += _ROUNDS
    if small:
        text = f"moe=spark_prof routes, multiplies and sums in 3 kernels a layer. {text}"
    return _ab("--b", side), text


def _of_step(step: MeasuredStep, gains: Sequence[Gain], report: Report) -> str:
    """What was measured of a whole step.

    Where other kernels or another GPU ran, that it is not known, and what is of single slots.
    """
    running = running_family(report, "experts")
    if step.machine == report.gpu.name and running == step.stock:
        return step.text
    here = f"on {report.gpu.name or 'this GPU'} against {running or 'what runs here'}"
    slots = [gain for gain in gains if gain.holds]
    slot_gains = f"{_of_gains(slots, briefly=False)} " if slots else ""
    return (
        f"{slot_gains}An A/B would tell what {_listed(step.side)} bring together {here}, which was "
        "not measured. A "
        f"step of {step.model} was: on {step.machine} with vLLM {step.vllm}, against {step.stock}."
    )


def _listed(side: str) -> str:
    """The slots of a side in words: layer, o and lm_head."""
    *most, last = (part.partition("=")[0] for part in side.split(","))
    return f"{', '.join(most)} and {last}" if most else last


def _of_gains(gains: Sequence[Gain], *, briefly: bool) -> str:
    """The figures that hold for this recording, and of the others that an A/B would tell."""
    holding = [gain for gain in gains if gain.holds]
    unmeasured = [gain for gain in gains if not gain.holds]
    texts = []
    if holding:
        where = ", ".join(dict.fromkeys(gain.where for gain in holding))
        texts.append(f"Measured on {where}: {_gains_text(holding, briefly=briefly)}.")
    if len(unmeasured) == 1:
        texts.append(unmeasured[0].untold)
    elif unmeasured:
        slots = ", ".join(gain.slot for gain in unmeasured)
        running = ", ".join(dict.fromkeys(gain.running for gain in unmeasured if gain.running))
        texts.append(
            f"An A/B would tell what {slots} bring {unmeasured[0].here} against "
            f"{running or 'what runs here'}, which was not measured."
        )
    return " ".join(texts)


def _gains_text(gains: Sequence[Gain], *, briefly: bool) -> str:
    """What was measured; of several kernels without their shapes, which `kernels list` has."""
    if len(gains) == 1 and not briefly:
        return f"{gains[0].slot} {gains[0].text}"
    by_other: dict[str, list[str]] = {}
    for gain in gains:
        by_other.setdefault(gain.other, []).append(f"{gain.slot} {gain.factor:.2f} x")
    return "; ".join(f"{', '.join(slots)} as fast as {other}" for other, slots in by_other.items())


def _options(finding: Finding, report: Report) -> _Answer:
    """An option of vLLM's that this model and version have."""
    if not _can_start(report):
        return None
    action = _trial(finding, report)
    for words in finding.tries:
        if not action and words.startswith(PASSES):
            action = _ab(f"--b={words}")
        elif not action and words.partition(" ")[0] not in OPTIONS.values():
            action = _ab("--b", words)
    action = action or _backend(finding, report)
    return (action, "") if action else None


def _backend(finding: Finding, report: Report) -> Action | None:
    """A backend that the advice names, or another of the option that it names, if it runs here."""
    options = {option: value for option, _, value in (w.partition(" ") for w in finding.tries)}
    for component in finding.components or OPTIONS:
        backends = other_backends(report, component)
        if backends is None or not backends.values or backends.option not in options:
            continue
        value = options[backends.option] or (backends.values[0] if finding.components else "")
        if value in backends.values:
            return _ab(f"--b={backends.option}={value}")
    return None


def _ab(*options: str) -> Action:
    """The A/B of the engine as it is with a side b."""
    return Action("ab", options, options[-1].removeprefix("--b="))


def _again(finding: Finding, report: Report) -> _Answer:
    """Another recording, where this one cannot tell more."""
    options = RECORDINGS.get(finding.id, ())
    if attached_to(split(report.run.command)):  # of a server that runs already
        options = tuple(word for word in options if word != "--nvtx")
    return (Action("record", options), "") if options and report.run.command else None


def _trial(finding: Finding, report: Report) -> Action | None:
    """The A/B that a table has for the finding and a run such as this one."""
    rows = (row for row in TRIALS if row.finding == finding.id and _RUNS[row.when](report))
    return next((Action("ab", row.sides, row.change) for row in rows), None)


_RUNS: Mapping[When, Callable[[Report], bool]] = {
    "always": lambda _: True,
    "eager": runs_eagerly,
    "no graphs": lambda report: not runs_graphs(report),
    "graphs not full": lambda report: report.run.mode.graph_mode != "FULL_AND_PIECEWISE",
}


def _can_start(report: Report) -> bool:
    """Whether `ab` can start that engine: a name alone is neither a folder nor on the hub."""
    words = split(report.run.command)
    engine = recorded_engine(words, report.run.model_name) if words else ("",)
    return engine[0] in ("vllm", PLACE) or "/" in engine[0] or in_container(engine)


def narrows(finding: Finding) -> bool:
    """Whether what it is about is mended by quantizing BF16 weights at load."""
    return finding.id in OF_WIDE_WEIGHTS

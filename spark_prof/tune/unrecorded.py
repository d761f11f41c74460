"""What may be tried on an engine of which there is no recording: for `tune --list`, on any machine.

Which of it applies, a recording tells: it has the layers, the kernels that ran, vLLM's version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import PurePath

from spark_prof.ab.command import EngineCommand, engine_command
from spark_prof.ab.engine_options import set_options
from spark_prof.ab.refusals import why_no_side
from spark_prof.analyzers.findings.other_backends import OPTIONS
from spark_prof.errors import CommandError
from spark_prof.rules.tune_candidates import LAYER_MODELS, SWAPS, TUNABLES
from spark_prof.tune.candidates import Allowed, option_path, why_not_allowed
from spark_prof.tune.tune_trial import Candidate, CandidateTable, UntriedCandidate, side_of

_OF_RECORDING = "which values run here, a recording tells; --from names one"


def command_to_list(words: Sequence[str]) -> EngineCommand:
    """The engine of a command whose program and model need not be on this machine.

    command_to_list(["vllm", "serve", "a/model"]).model == "a/model"
    """
    try:
        command = engine_command(words)
    except CommandError:
        named = _named(words)
        if named is None:
            raise
        command = named
    here = find_spec("vllm") is not None
    return command if here else replace(command, python="")  # whose packages are not vLLM's


def _named(words: Sequence[str]) -> EngineCommand | None:
    """The engine that the words start, where they say so: vllm serve, or a model's folder."""
    programs = [at for at, word in enumerate(words) if PurePath(word).name == "vllm"]
    if programs and tuple(words[programs[0] + 1 : programs[0] + 2]) == ("serve",):
        at = programs[0]
        return EngineCommand(tuple(words), tuple(words[:at]), "", "serve", tuple(words[at + 2 :]))
    if words and "/" in words[0]:
        return EngineCommand(tuple(words), (), "", "model", tuple(words))
    return None


def unrecorded_table(command: EngineCommand, allowed: Allowed) -> CandidateTable:
    """Everything that may apply, without what the command sets or the model's files rule out."""
    paths_of_command = {option_path(name) for name in set_options(command.arguments)}
    candidates: list[Candidate] = []
    left: list[UntriedCandidate] = []
    for row in _rows():
        side = side_of((row.words,))
        overlap = {option_path(name) for name in set_options(side.options)} & paths_of_command
        why = "the command sets it" if overlap else why_not_allowed(side, allowed)
        why = why or why_no_side(command, side, anywhere=True)
        if why:
            left.append(UntriedCandidate(row.words, row.source, why))
        else:
            candidates.append(row)
    left += [UntriedCandidate(row.words, row.source, row.never) for row in TUNABLES if row.never]
    left += [
        UntriedCandidate(option, "backends", _OF_RECORDING)
        for option in dict.fromkeys(OPTIONS.values())
    ]
    return CandidateTable(tuple(candidates), tuple(left), recorded=False)


def _rows() -> Iterator[Candidate]:
    models = ", ".join(LAYER_MODELS)
    yield Candidate("layer=spark_prof", "kernels", f"decoder layers of {models}", "", None)
    for swap in SWAPS:
        formats = ", ".join(swap.formats) or "any"
        yield Candidate(
            f"{swap.slot}=spark_prof", "kernels", f"layers with {formats} weights", "", None
        )
        for kernel in ("mxfp4", "fp8") if swap.quantizes else ():
            words = f"{swap.slot}={kernel}"
            yield Candidate(words, "kernels", "BF16 weights", "", None, changes_model=True)
    for row in TUNABLES:
        if not row.never and "{" not in row.words:
            with suppress(CommandError):
                side_of((row.words,))
                yield Candidate(
                    row.words, row.source, row.condition, "", None, changes_model=row.narrows_cache
                )

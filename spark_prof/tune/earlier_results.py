"""What earlier results of ab and tune measured on the same GPU and model: where a search starts.

A result may be somebody else's file. Only what merely chooses kernels and sizes is taken from it
(`ab.apply.harmless_side`), and nothing of it is believed: each is measured again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import msgspec

from spark_prof.ab.apply import harmless_side
from spark_prof.ab.engine_options import set_options
from spark_prof.ab.result import AbOutcome, chosen_run, outcome_of, read_result
from spark_prof.ab.sides import Side
from spark_prof.errors import CommandError
from spark_prof.traces.checkpoint import model_folder, read_checkpoint
from spark_prof.traces.resolve import RESULT_FILE, command_of_result
from spark_prof.tune.candidates import Allowed, why_not_allowed
from spark_prof.tune.tune_result import EarlierGain, TuneResult, read_tune
from spark_prof.tune.tune_trial import (
    Candidate,
    CandidateTable,
    UntriedCandidate,
    over_batches,
    side_of,
)

SOURCE = "known"
MOST_FILES = 500
_NAMES_ITS_PLACE = ("_name_or_path", "transformers_version")
_NOT_PLAIN = "that result names a file or a variable that only you can type: give it with --try"
_LOST = ("slower", "no effect", "changes answers", "not live", "failed")


@dataclass(frozen=True)
class Like:
    """Of what results are looked for; empty where it is not known, and any will do."""

    gpu: str
    model: str  # name or folder
    digest: str = ""  # of the model's configuration; where both have one it decides

    def fits(self, gpu: str, model: str, digest: str = "") -> bool:
        """Whether a result is of the same GPU and model.

        Like("NVIDIA GB10", "/models/Qwen3-8B").fits("NVIDIA GB10", "Qwen/Qwen3-8B")
        """
        if self.gpu and gpu != self.gpu:
            return False
        if self.digest and digest:
            return self.digest == digest
        return PurePath(self.model).name.lower() == PurePath(model).name.lower() != ""


def digest_of(model: str) -> str:
    """What tells a model's configuration from another's, whatever it is called; empty if unknown.

    digest_of("/models/Qwen3-8B")
    """
    with suppress(CommandError, OSError):
        config = read_checkpoint(model_folder(model)).config
        content = {key: config[key] for key in sorted(config) if key not in _NAMES_ITS_PLACE}
        if content:
            return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]
    return ""


def earlier_gains(folders: Sequence[Path], like: Like, but: Path) -> tuple[EarlierGain, ...]:
    """What results in folders measured of the same GPU and model, the largest gain first.

    Args:
        folders: each holds results, or folders of them.
        but: the folder of the tune itself.
    """
    gains: dict[str, EarlierGain] = {}
    files = dict.fromkeys(path for folder in folders for path in result_files(folder, but))
    for path in list(files)[:MOST_FILES]:
        for row in _gains_of(path, like):
            best = gains.setdefault(row.words, row)
            if (row.gain or 0.0) > (best.gain or 0.0):
                gains[row.words] = row
    return tuple(sorted(gains.values(), key=lambda row: -(row.gain or 0.0)))


def with_earlier(
    table: CandidateTable, earlier: Sequence[EarlierGain], allowed: Allowed
) -> CandidateTable:
    """The table, with what was faster before at its beginning, and what was not at its end."""
    rows = {_key(side_of((row.words,))): row for row in table.candidates}
    first: dict[object, Candidate] = {}
    last: dict[object, Candidate] = {}
    left = list(table.left_out)
    for row_before in earlier:
        side = harmless_side(row_before.words)
        if side is None:
            left.append(UntriedCandidate(row_before.words, SOURCE, _NOT_PLAIN))
            continue
        key = _key(side)
        if key in first or key in last:
            continue
        if row_before.verdict in _LOST:
            if key in rows:
                last[key] = replace(
                    rows[key], condition=f"{rows[key].condition}; {_condition_of(row_before)}"
                )
        elif why := why_not_allowed(side, allowed):
            left.append(UntriedCandidate(row_before.words, SOURCE, why))
        else:
            row = rows.get(key, Candidate(row_before.words, SOURCE, "", "", None))
            condition = "; ".join(filter(None, (_condition_of(row_before), row.condition)))
            first[key] = replace(row, condition=condition, known=True)
    rest = [row for key, row in rows.items() if key not in first and key not in last]
    first_words = {row.words for row in first.values()}
    left = [row for row in left if row.words not in first_words]
    candidates = (*first.values(), *rest, *last.values())
    return replace(table, candidates=candidates, left_out=tuple(left))


def _condition_of(earlier_gain: EarlierGain) -> str:
    gain = f"{earlier_gain.gain:.2f} x" if earlier_gain.gain else earlier_gain.verdict
    day = earlier_gain.taken[:10]
    return f"{gain} on {earlier_gain.gpu} in {earlier_gain.where} ({day}), measured again here"


def _key(side: Side) -> object:
    options = frozenset(set_options(side.options).items())
    return frozenset(side.swaps), options, frozenset(side.environment)


def result_files(folder: Path, but: Path | None = None) -> Iterator[Path]:
    """The results of a folder, and of the folders in it but one."""
    if folder.is_file():
        yield folder
        return
    with suppress(OSError):
        inside = sorted(folder.iterdir())
        places = [path for path in inside if path.suffix == ".json"]
        places += [path / RESULT_FILE for path in inside if path.is_dir()]
        for path in places:
            if (but is None or path.parent.absolute() != but.absolute()) and path.is_file():
                yield path


def _gains_of(path: Path, like: Like) -> Iterator[EarlierGain]:
    """What one file measured; nothing of one that is of something else, or damaged."""
    with suppress(CommandError):
        match command_of_result(path):
            case "tune":
                tuned = read_tune(path)
                if like.fits(tuned.gpu, tuned.model, tuned.model_digest):
                    yield from _of_tune(tuned, _place(path))
            case "ab":
                result = read_result(path)
                if like.fits(_gpu_of(result), result.model):
                    yield from _of_ab(result, _place(path))


def _gpu_of(result: AbOutcome) -> str:
    return result.machine.gpu or result.machine.processor


def _place(path: Path) -> str:
    return path.parent.name if path.name == RESULT_FILE else path.name


def _of_tune(tuned: TuneResult, where: str) -> Iterator[EarlierGain]:
    about = EarlierGain("", "faster", None, where, tuned.taken, tuned.gpu, tuned.vllm)
    if tuned.answer and (gain := over_batches(tuned.times)):
        yield replace(about, words=" ".join(tuned.answer), gain=gain.value)
    for tried in tuned.tried:
        if not tried.source:
            continue
        if tried.verdict in ("faster", "chosen") and tried.gain:
            yield replace(about, words=tried.name, gain=tried.gain.value)
        elif tried.verdict in _LOST:
            yield replace(about, words=tried.name, verdict=tried.verdict)


def _of_ab(result: AbOutcome, where: str) -> Iterator[EarlierGain]:
    a, b = result.sides
    outcome, run = outcome_of(result), chosen_run(result)
    if a.name != "stock":
        return
    gpu, version = _gpu_of(result), result.versions.get("vllm", "")
    about = EarlierGain(b.name, "faster", None, where, result.taken, gpu, version)
    if outcome == "faster" and run and run.estimate.gain:
        yield replace(about, gain=run.estimate.gain.value)
    elif outcome in _LOST:
        yield replace(about, verdict=outcome)
    elif outcome == "gate failed":
        yield replace(about, verdict="changes answers")

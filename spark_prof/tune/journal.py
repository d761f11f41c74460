"""The journal of a tune: what it is of, then one line a trial, flushed as it ends.

A tune that was killed goes on with it: what was measured is not measured again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from spark_prof.errors import CommandError, os_errors
from spark_prof.redact import redacted, redacted_value
from spark_prof.tune.tune_trial import Combination, Stage, TuneTrial

JOURNAL_FILE = "journal.jsonl"
_KIND = "spark-prof tune journal"
_LONGEST = 64 << 20


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the trials of a journal are of: with another of any they say nothing."""

    command: tuple[str, ...]  # of the engine, secrets hidden
    batch_sizes: tuple[int, ...]
    context: int
    vllm: str  # its version
    gpu: str  # name; of a CPU engine the processor's
    kind: str = _KIND


class Journal:
    """The file that trials are appended to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL_FILE
        self.trials: dict[Any, TuneTrial] = {}
        self.subject: Subject | None = None

    def read(self) -> None:
        """Takes what an earlier run has left; a last line that a kill cut short is none."""
        way_out = "give the folder of an earlier tune"
        with os_errors(f"cannot read {self.path}", way_out), self.path.open("rb") as file:
            lines = file.read(_LONGEST).splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        try:
            self.subject = msgspec.json.decode(whole[0], type=Subject) if whole else None
            for line in whole[1:]:
                trial = msgspec.json.decode(line, type=TuneTrial)
                self.trials[trial.key] = trial
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CommandError(f"{self.path} is damaged: {error}; begin a tune anew") from error
        if self.subject is None or self.subject.kind != _KIND:
            raise CommandError(f"{self.path} is no journal of spark-prof tune; begin a tune anew")
        if len(whole) < len(lines):  # what is appended begins a line of its own
            with os_errors(f"cannot write {self.path}"), self.path.open("wb") as file:
                file.writelines(whole)

    def begin(self, subject: Subject) -> None:
        """Says what follows is of; refuses where the journal is of something else."""
        if self.subject is None:
            self.subject = subject
            self._append(msgspec.json.encode(subject))
            return
        old, new = (msgspec.to_builtins(part) for part in (self.subject, subject))
        for name, words in _CALLED.items():
            if old[name] != new[name]:
                raise CommandError(
                    f"--resume: {self.path.parent} was measured with {words} "
                    f"{_text_of(old[name])}, and this is {_text_of(new[name])}; "
                    "begin a tune anew with -o"
                )

    def find(
        self, stage: Stage, number: int, combination: Combination, than: Combination | None
    ) -> TuneTrial | None:
        """The trial that an earlier run kept, or this one."""
        trial = self.trials.get((stage, number, _hidden(combination), than and _hidden(than)))
        return trial and replace(trial, combination=combination, than=than)

    def add(self, trial: TuneTrial) -> None:
        """Appends a trial, unless it was read from it."""
        hidden = redacted_value(
            replace(
                trial,
                combination=_hidden(trial.combination),
                than=trial.than and _hidden(trial.than),
            )
        )
        if hidden.key not in self.trials:
            self.trials[hidden.key] = hidden
            self._append(msgspec.json.encode(hidden))

    def _append(self, line: bytes) -> None:
        with os_errors(f"cannot write {self.path}"), self.path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())


_CALLED: Mapping[str, str] = {
    "command": "the command",
    "batch_sizes": "batch sizes",
    "context": "a context of",
    "vllm": "vLLM",
    "gpu": "",
}


def _hidden(combination: Combination) -> Combination:
    """Its words without the values of secret variables."""
    return tuple(" ".join(redacted(shlex.split(words))) for words in combination)


def _text_of(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value) or "unknown"

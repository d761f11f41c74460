"""What may be tried on a recorded engine: rows of `rules.tuning` and what its findings say."""

from __future__ import annotations

from dataclasses import dataclass

from spark_prof.ab.command import EngineCommand
from spark_prof.analyzers.model import Report
from spark_prof.tune.candidate import CandidateTable
from spark_prof.tune.machine_facts import MachineFacts


@dataclass(frozen=True)
class Allowed:
    """What a person allows that changes the model."""

    requantize: bool = False  # BF16 weights may be quantized at load
    kv_dtype: bool = False  # the KV cache may get a narrower format


def candidates_of(
    report: Report, command: EngineCommand, facts: MachineFacts, allowed: Allowed
) -> CandidateTable:
    """What may be tried, and what is left out.

    Args:
        report: of the recording (`analyzers.summary.summarize`); its findings give milliseconds.
        command: the engine as the person starts it; what it sets is not proposed.
        facts: `recorded_facts` of the same recording.
    """
    return CandidateTable((), ())

"""Writes a comparison as the JSON that other people's scripts read: keys may be added, none goes.

Times are microseconds and shares fractions of 1; an interval that is not known is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from spark_prof.analyzers.comparing.gate.verdict import Checked
from spark_prof.analyzers.comparing.model import Comparison, PhaseComparison, Side
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.dashboards.compare_gate import reason
from spark_prof.dashboards.compare_words import LETTERS
from spark_prof.dashboards.render.json_report import write

if TYPE_CHECKING:
    from spark_prof.dashboards.compare_report import Compared

SCHEMA = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def render(compared: Compared) -> str:
    """Writes a comparison, the same text for the same recordings."""
    first = compared.found[0]
    return write(
        {
            "schema": SCHEMA,
            "kind": "spark-prof compare",
            "reference": _sides(first.sides[0]),
            "comparisons": [
                _comparison(found, letter)
                for letter, found in zip(LETTERS[1:], compared.found, strict=False)
            ],
            "gate": [
                _checked(each, letter)
                for letter, checked in zip(LETTERS[1:], compared.gate, strict=False)
                for each in checked
            ],
        }
    )


def _comparison(found: Comparison, letter: str) -> dict[str, Any]:
    return {
        "side": letter,
        "other": _sides(found.sides[1]),
        "assumed_start_share": found.assumed or None,
        "phases": [_phase(phase) for phase in found.phases],
        "setup": [asdict(setting) for setting in found.setup],
        "notes": list(found.notes),
    }


def _sides(recordings: Sequence[Side]) -> dict[str, Any]:
    """The first recording of a side, and the sources of all."""
    side = recordings[0]
    report = side.report
    return {
        "source": side.source,
        "recordings": [each.source for each in recordings],
        "run": asdict(report.run),
        "gpu": asdict(report.gpu),
        "steps": report.steps.count,
        "coverage": asdict(report.coverage),
        "conversions_share": report.conversions.share,
        "findings": [each.id for each in report.findings],
    }


def _phase(phase: PhaseComparison) -> dict[str, Any]:
    # `asdict` turns the changes that lie within into their fields; what they imply is added.
    value: dict[str, Any] = _with_shares(asdict(phase))
    for part, row in zip(phase.kernels, value["kernels"], strict=True):
        row["where"] = part.where
    return value


def _with_shares(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == _CHANGE:
            return _change(value)
        return {key: _with_shares(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_with_shares(entry) for entry in value]
    return value


_CHANGE = {each.name for each in fields(Change)}


def _change(value: Mapping[str, Any]) -> dict[str, Any]:
    """A change; with several recordings a side also the figure of each."""
    change = Change(**value)
    found = {key: value[key] for key in ("a", "b", "us", "low", "high")}
    found |= {"share": change.share(change.us), "sure": change.sure}
    found["share_low"], found["share_high"] = change.shares
    if max(map(len, change.figures)) > 1:
        for side, figures in zip(("a", "b"), value["figures"], strict=True):
            found[f"values_{side}"] = [each["value"] for each in figures]
    return found


def _checked(checked: Checked, letter: str) -> dict[str, Any]:
    return {
        "limit": checked.expression.text,
        "side": letter,
        "outcome": checked.outcome,
        "kind": checked.reading.kind,
        "change": _with_shares(asdict(checked.reading.change)),
        "reason": reason(checked, letter),
    }

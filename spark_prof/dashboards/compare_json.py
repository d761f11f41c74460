"""Writes a comparison as the JSON that other people's scripts read: keys may be added, none goes.

Times are microseconds and shares fractions of 1; an interval that is not known is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spark_prof.analyzers.comparing.gate.verdict import Checked
from spark_prof.analyzers.comparing.model import Comparison, PhaseComparison, Side
from spark_prof.analyzers.comparing.noise import Change
from spark_prof.dashboards.compare_gate import reason
from spark_prof.dashboards.compare_words import LETTERS
from spark_prof.dashboards.json_report import write

if TYPE_CHECKING:
    from spark_prof.dashboards.compare_report import Compared

__all__ = ["SCHEMA", "render"]

SCHEMA = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def render(compared: Compared) -> str:
    """Writes a comparison, the same text for the same recordings."""
    first = compared.found[0]
    return write(
        {
            "schema": SCHEMA,
            "kind": "spark-prof compare",
            "reference": _side(first.a),
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
        "other": _side(found.b),
        "phases": [_phase(phase) for phase in found.phases],
        "setup": [asdict(setting) for setting in found.setup],
        "notes": list(found.notes),
    }


def _side(side: Side) -> dict[str, Any]:
    report = side.report
    return {
        "source": side.source,
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
        found = {key: _with_shares(entry) for key, entry in value.items()}
        if found.keys() == {"a", "b", "us", "low", "high"}:
            change = Change(**value)
            return found | {"share": change.share(change.us), "sure": change.sure}
        return found
    if isinstance(value, list | tuple):
        return [_with_shares(entry) for entry in value]
    return value


def _checked(checked: Checked, letter: str) -> dict[str, Any]:
    return {
        "limit": checked.expression.text,
        "side": letter,
        "outcome": checked.outcome,
        "kind": checked.reading.kind,
        "change": _with_shares(asdict(checked.reading.change)),
        "reason": reason(checked, letter),
    }

"""The results file of benchmarks/architectures.py, and the page that is made of it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DERIVED = ("right", "wrong", "not_comparable")
"""What became of derived owners, in the table's order."""


@dataclass(frozen=True)
class Result:
    """One architecture's line of the results file; what was not reached has its default.

    Attributes:
        name: of the architecture table.
        model: whose sizes it has.
        model_class: in vLLM's registry.
        layers: of the model.
        cut: what is cut besides layers and vocabulary.
        why: why there is no comparison, empty where there is one.
        about: GPU, versions of vLLM, torch and spark-prof, date.
        seconds: eager, default and compare: how long each took.
        step: us, kernels_us and floor_us of the decode step, and the invariants broken.
        whole: the model has all its layers and its vocabulary.
    """

    name: str
    model: str
    model_class: str
    layers: int
    cut: str
    why: str = ""
    about: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    comparison: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    whole: bool = False

    @property
    def right(self) -> bool:
        """Whether nothing is known to be wrong."""
        return not self.comparison.get("wrong")


def read_results(path: Path) -> dict[str, Result]:
    """The results of that file by name, none where it is absent; the last line of a name counts."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    # A run that was killed may have left half a line.
    whole = [line for line in lines if line.startswith("{") and line.endswith("}")]
    return {result.name: result for result in (Result(**json.loads(line)) for line in whole)}


def page_of(results: Sequence[Result]) -> str:
    """The README.md beside the results: what figures stand on, the table, and what did not start.

    Example:
        >>> page_of([]).splitlines()[0]
        '# Architectures'
    """
    cut_down = [result for result in results if not result.whole]
    compared = [result for result in cut_down if result.comparison]
    parts = ["# Architectures", "", *_introduction(compared, len(cut_down))]
    if compared:
        parts += ["", "## Results", "", *_table(compared)]
    if whole := [result for result in results if result.whole and result.comparison]:
        parts += ["", "## Whole models", "", *_whole_table(whole)]
    if wrong := [result for result in (*compared, *whole) if not result.right]:
        parts += ["", "## What is wrong", ""]
        parts += [f"- {r.name}: {_escaped(line)}" for r in wrong for line in _wrong(r)[:8]]
    if cut := [result for result in results if result.cut]:
        parts += ["", "## What is cut", ""]
        parts += [f"- {result.name} ({result.model}): {result.cut}" for result in cut]
    if failed := [result for result in results if not result.comparison]:
        parts += ["", "## What did not start", "", "| Architecture | Model | Why |"]
        parts += ["| --- | --- | --- |"]
        parts += [f"| {r.name} | {r.model} | {_escaped(r.why)} |" for r in failed]
    return "\n".join(parts) + "\n"


def _introduction(compared: Sequence[Result], tried: int) -> list[str]:
    lines = [
        "Whether every kernel's owner is known and right, architecture by architecture: a decode",
        "step at batch 1 as vLLM runs by default (torch.compile, CUDA graphs) against an eager run",
        "with a range around every module, node by node. Sizes are the named model's, with two",
        "layers of each kind, 32,000 rows of vocabulary and random weights.",
        "`python -m benchmarks.architectures` records and compares; it wrote this page too.",
    ]
    if not compared:
        return lines
    about = sorted({_setting(result) for result in compared})
    weights = sum(result.comparison["weight_kernels"] for result in compared)
    wrong = sum(len(_wrong(result)) for result in compared)
    proven = [_share(result, "proven") for result in compared]
    derived = [_share(result, "proven") + _share(result, "derived") for result in compared]
    return [
        *lines,
        "",
        *(f"Recorded on {line}." for line in about),
        *_with_variables(compared),
        "",
        f"- {len(compared)} of {tried} architectures were compared; "
        f"{sum(result.right for result in compared)} have nothing wrong.",
        f"- {weights} kernels a step read a weight; {wrong} owners are wrong.",
        *_derived_line(compared),
        f"- Decode kernel time proven: median {_percent(statistics.median(proven))}, "
        f"worst {_worst(compared, proven)}.",
        f"- Proven or derived: median {_percent(statistics.median(derived))}, "
        f"worst {_worst(compared, derived)}.",
    ]


def _with_variables(compared: Sequence[Result]) -> list[str]:
    """Which architectures were recorded with environment variables that others did not have."""
    names: dict[str, list[str]] = {}
    for result in compared:
        if variables := result.about.get("variables"):
            names.setdefault(variables, []).append(result.name)
    return [f"With {variables}: {', '.join(rows)}." for variables, rows in sorted(names.items())]


def _table(compared: Sequence[Result]) -> list[str]:
    lines = [
        "| Architecture | Model | vLLM | Kernels | Read a weight | Wrong | Proven | Derived |",
        "| --- | --- | --- " + "| ---: " * 5 + "|",
    ]
    for result in compared:
        comparison = result.comparison
        cells = [
            result.name,
            result.model,
            result.about["vllm"],
            *(comparison[name] for name in ("kernels", "weight_kernels")),
            len(_wrong(result)),
            *(_percent(_share(result, name)) for name in ("proven", "derived")),
        ]
        lines.append(_row(cells))
    return lines


def _whole_table(compared: Sequence[Result]) -> list[str]:
    lines = [
        "All layers and the whole vocabulary. Other engines ran on the same GPU, which makes steps",
        "longer. Lower bound: the bytes that the step has to read, at the GPU's bandwidth.",
        "",
        "| Model | Layers | Kernels | Wrong | Proven | Derived | Decode step, us "
        "| Lower bound, us |",
        "| --- | --- " + "| ---: " * 6 + "|",
    ]
    for result in compared:
        comparison, step = result.comparison, result.step
        cells = [
            result.model,
            f"{comparison['layers_found']} of {result.layers}",
            comparison["kernels"],
            len(_wrong(result)),
            *(_percent(_share(result, n)) for n in ("proven", "derived")),
            *(_us(step.get(name)) for name in ("us", "floor_us")),
        ]
        lines.append(_row(cells))
    return lines


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _us(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.0f}"


def _derived_line(compared: Sequence[Result]) -> list[str]:
    """Of older results, nothing tells what became of derived owners."""
    derived = [_derived(result) for result in compared if _derived(result)]
    if not derived:
        return []
    right, wrong, alone = (sum(counts[name] for counts in derived) for name in _DERIVED)
    return [
        f"- Derived owners of {len(derived)} architectures: {right} are right, {wrong} are wrong, "
        f"{alone} are of kernels that only one run has."
    ]


def _derived(result: Result) -> dict[str, int]:
    counts: dict[str, int] = result.comparison.get("derived") or {}
    return counts


def _wrong(result: Result) -> list[str]:
    wrong_owners: list[str] = result.comparison["wrong"]
    return wrong_owners


def _share(result: Result, name: str) -> float:
    share: float = result.comparison["shares"][name]
    return share


def _setting(result: Result) -> str:
    about = result.about
    versions = f"vLLM {about['vllm']}, torch {about['torch']}"
    return f"{about['gpu']}, {versions}, {about['date']}"


def _worst(compared: Sequence[Result], shares: Sequence[float]) -> str:
    share, name = min(zip(shares, (result.name for result in compared), strict=True))
    return f"{_percent(share)} ({name})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _escaped(text: str) -> str:
    r"""Text of an engine's output as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")

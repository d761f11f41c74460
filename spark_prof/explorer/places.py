"""Where the evidence of a finding, or of a part of the waterfall, is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.findings.naming import short_name
from spark_prof.analyzers.model import Finding
from spark_prof.datasets.prepared import Prepared

_OTHERWISE = "fallbacks"

PAGES: Mapping[str, str] = MappingProxyType(
    {
        "host-gaps": "timeline",
        "scheduler-gaps": "timeline",
        "eager-mode": "timeline",
        "graphs-downgraded": "timeline",
        "copies-in-decode": "timeline",
        "slow-steps": "steps",
        "mixed-steps": "steps",
        "graph-sizes-missing": "steps",
        "compiled-in-flight": "steps",
        "small-kernels": "kernels",
        "sampler-cost": "kernels",
        "far-from-memory-floor": "kernels",
        "bf16-weights-dominate": "kernels",
        "read-more-than-needed": "kernels",
        "grid-smaller-than-gpu": "kernels",
        "tail-wave": "kernels",
        "tile-waste": "kernels",
        "low-occupancy": "kernels",
        "lm-head-widened": "kernels",
        "lm-head-not-quantized": "kernels",
        "software-fp4-conversion": "kernels",
        "plain-architecture-build": "kernels",
        "emulated-fp8": "kernels",
        "evidence-conflict": "kernels",
        "clocks-held-down": "steps",
        "straggler-rank": "ranks",
        "nccl-all-reduce": "ranks",
        "activations-quantized-apart": "conversions",
        "expert-inputs-quantized-apart": "conversions",
        "kv-cache-converted-apart": "conversions",
        "weights-dequantized": "conversions",
        "scales-swizzled": "conversions",
        "padding-around-products": "conversions",
        "transposed-in-decode": "conversions",
        "casts-in-decode": "conversions",
        "repacked-in-decode": "conversions",
        "quantized-once-per-consumer": "conversions",
    }
)
"""The page of each rule's evidence; those of the audit are not listed and all on one page."""

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "floor": "kernels",
        "component": "kernels",
        "components": "kernels",
        "small": "kernels",
        "conversion": "conversions",
        "collective": "ranks",
        "copies": "timeline",
        "launch_gaps": "timeline",
        "host": "timeline",
        "rest": "steps",
        "measured": "steps",
    }
)
"""The page of each kind of part of the waterfall."""

_COMPONENTS: Mapping[str, str] = MappingProxyType(
    {"sampler-cost": "sampler", "lm-head-widened": "lm_head", "lm-head-not-quantized": "lm_head"}
)


@dataclass(frozen=True)
class Place:
    """A place on a page.

    Attributes:
        path: of the page.
        values: what its address says.
    """

    path: str
    values: Mapping[str, str | int]


def page_of(finding: Finding) -> str:
    """Path of the page that shows what a finding stands on."""
    return PAGES.get(finding.id, _OTHERWISE)


def place_of_finding(finding: Finding, shown: Prepared) -> Place:
    """The page of the finding, at the kernel or step that it speaks of where it names one."""
    path = page_of(finding)
    values: dict[str, str | int] = {}
    if path == "timeline":
        values = _step(shown.steps)
    elif path == "kernels":
        row = _named(finding, shown.report.kernels)
        if row is not None and row.name in shown.kernels.names:
            values["kernel"] = shown.kernels.names.index(row.name)
            values["component"] = row.component
        elif finding.id in _COMPONENTS:
            values["component"] = _COMPONENTS[finding.id]
    return Place(path, values)


def place_of_part(kind: str, component: str, shown: Prepared) -> Place:
    """Where the kernels or gaps of a part of the waterfall are."""
    path = PARTS.get(kind, "kernels")
    if path == "timeline":
        return Place(path, _step(shown.steps))
    return Place(path, {"component": component} if component else {})


def typical_step(steps: pd.DataFrame) -> int | None:
    """The decode step of median length; of any phase where none decodes, None without steps."""
    if steps.empty or "step_us" not in steps:
        return None
    own = steps[(steps["phase"].astype(str) == "decode").to_numpy()]
    own = own if len(own) else steps
    order = own["step_us"].to_numpy().argsort(kind="stable")
    return int(own["step"].iloc[order[len(order) // 2]])


def _step(steps: pd.DataFrame) -> dict[str, str | int]:
    found = typical_step(steps)
    return {} if found is None else {"step": found}


def _named(finding: Finding, kernels: Sequence[KernelRow]) -> KernelRow | None:
    """The kernel of which a finding speaks first, the one of its component before others."""
    text = finding.text
    places = [
        (text.find(f"{short} ({row.component}"), text.find(short), row)
        for row in kernels
        for short in [short_name(row.name)]
        if short
    ]
    exact = [(place, row) for place, _, row in places if place >= 0]
    loose = [(place, row) for _, place, row in places if place >= 0]
    found = exact or loose
    return min(found, key=lambda item: item[0])[1] if found else None

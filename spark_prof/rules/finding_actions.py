"""What to do next about a finding: side of an A/B, recording, doctor or section, by its id.

A finding that no row names is taken further by a kernel of this package or an option of its advice,
where one runs here, and else by the section that has its evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

When = Literal["always", "eager", "no graphs", "graphs not full"]
"""How the run that a row is for ran its steps."""


class AbAction(NamedTuple):
    """An A/B that shows what a change brings."""

    finding: str
    when: When
    sides: tuple[str, ...]  # options of `spark-prof ab`
    change: str  # what the better side has that this run has not


_EAGER = (("--a=--enforce-eager", "--b", "stock"), "--no-enforce-eager")
_FULL_GRAPHS = "--compilation-config.cudagraph_mode=FULL_AND_PIECEWISE"
_FUSED = "--compilation-config.pass_config.fuse_allreduce_rms=true"

TRIALS = (
    AbAction("host-gaps", "no graphs", *_EAGER),
    AbAction("host-gaps", "graphs not full", (f"--b={_FULL_GRAPHS}",), _FULL_GRAPHS),
    AbAction("idle-gpu", "eager", *_EAGER),
    AbAction("eager-mode", "always", *_EAGER),
    AbAction("small-kernels", "eager", *_EAGER),
    AbAction("nccl-all-reduce", "always", (f"--b={_FUSED}",), _FUSED),
)
"""Of a finding's rows the first whose run is this one counts."""

RECORDINGS: Mapping[str, tuple[str, ...]] = {
    "copies-in-decode": ("--nvtx",),
    "read-more-than-needed": ("--counters",),
    "idle-gpu": ("--steady", "--batch-sizes", "1"),
    "compiled-in-flight": ("--warmup-steps", "32"),
}
"""Options of `spark-prof record` with which another recording tells more."""

OF_THE_MACHINE = ("library-missing", "ignored-environment-variable", "plain-architecture-build")
"""Findings of what is installed: `spark-prof doctor` looks again."""

OF_WIDE_WEIGHTS = ("bf16-weights-dominate", "lm-head-not-quantized")
"""Findings whose BF16 weights a kernel of this package can quantize to MXFP4 at load."""

OF_SMALL_KERNELS = ("router", "experts")
"""Components whose small kernels the package's experts take in: they route, activate and sum."""

EXPORTED = ("slow-steps", "host-gaps")
"""Findings about single steps, which a timeline shows: `spark-prof export`."""

OWN_SECTIONS: Mapping[str, str] = {
    "drafts-do-not-pay": "speculation",
    "drafts-too-many": "speculation",
    "drafts-too-few": "speculation",
    "drafts-outside-graphs": "speculation",
    "requests-queue": "requests",
    "kv-cache-bound": "requests",
    "context-slope": "context",
}
"""The section that has a finding's evidence, where it is another than that of its page."""

SECTIONS: Mapping[str, str] = {
    "fallbacks": "audit",
    "kernels": "kernels",
    "timeline": "components",
    "steps": "steps",
    "conversions": "conversions",
    "ranks": "ranks",
    "host": "host",
}
"""The section, one that every report with such a finding has, that has a page's evidence."""

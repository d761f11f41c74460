"""What a rule is that looks for something worth changing, and what rules ask of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_prof.analyzers.finding import Finding, NamedKernel
from spark_prof.analyzers.model import ModuleRow, Report
from spark_prof.rules import thresholds
from spark_prof.rules.environment import version_of

Subject = TypeVar("Subject")


def ms_per_token(report: Report, decode_us: float) -> float | None:
    """What that much time of all decode steps is in each token, in milliseconds."""
    us = report.steps.us_per_token(decode_us)
    return None if us is None else us / 1e3


BETWEEN_KERNELS_US = thresholds.BETWEEN_KERNELS.value
"""What the GPU may need from one kernel of a CUDA graph to the next, and no host can help."""


def decode_step_us(report: Report) -> float:
    """The median decode step; 0 where no step decodes or nothing has times."""
    return report.steps.decode_us.median if report.steps.decode_us else 0.0


def decode_steps_us(report: Report) -> float:
    """All decode steps together, if each were the median one: a few slow ones hide no kernel."""
    return decode_step_us(report) * report.steps.decode


def kernels_per_decode_step(report: Report) -> float:
    """Launches of a mean decode step; 0 where nothing tells."""
    if report.shapes is None or not report.steps.decode:
        return 0.0
    return sum(row.calls for row in report.shapes.rows) / report.steps.decode


def runs_graphs(report: Report) -> bool:
    """Whether the recording says that CUDA graphs were replayed."""
    return report.run.mode.graphs


def replays_full_graphs(report: Report) -> bool:
    """Whether decode steps replay one CUDA graph each, as set up and as far as was seen."""
    if not report.run.mode.graph_mode.startswith("FULL"):
        return False
    model_graphs = [row for row in report.graphs if row.kind in ("model", "")]
    if model_graphs:
        return max(model_graphs, key=lambda row: row.steps).mode == "FULL"
    sizes = report.audit.batches if report.audit else ()
    return all(row.graph is not None for row in sizes)


def runs_eagerly(report: Report) -> bool:
    """Whether the recording or its log says that every kernel was launched by itself."""
    if report.audit is not None and report.audit.engine.eager is not None:
        return report.audit.engine.eager
    return report.run.mode.launches_alone


def runs_asynchronously(report: Report) -> bool:
    """Whether the scheduler chose the next batch while the GPU worked."""
    return report.run.mode.asynchronous


def is_at_least(report: Report, major: int, minor: int) -> bool:
    """Whether vLLM is known to be of that version or a later one."""
    return version_of(report.run.vllm) >= (major, minor)


_QK_NORM_WIDTH = thresholds.QK_NORM_WIDTH.value


def has_qk_norm(modules: Iterable[ModuleRow]) -> bool:
    """Whether the model normalizes q and k: two norms a layer that are as wide as a head."""
    modules = tuple(modules)
    layers = max((m.count for m in modules if m.component == "o_proj"), default=0)
    return layers > 0 and any(
        m.component == "norm"
        and m.count >= 2 * layers
        and m.shape.isdecimal()
        and int(m.shape) <= _QK_NORM_WIDTH
        for m in modules
    )


@dataclass(frozen=True)
class Observation:
    """What a rule found: a `Finding` but for its id."""

    ms_per_token: float | None  # what the fix should bring at most; None where unknown
    text: str  # what was found, with its figures
    fix: str  # what to change
    evidence: tuple[str, ...] = ()  # what it stands on, one sentence each
    components: tuple[str, ...] = ()  # whose kernels it is about; empty where it is about none
    subject: str = ""  # what tells it from others of its rule
    # Options of vLLM's that the advice names, as they are typed; a backend may have no value.
    tries: tuple[str, ...] = ()
    kernels: tuple[NamedKernel, ...] = ()  # that its text and evidence name, in their order


PASSES = "--compilation-config.pass_config."
"""What stands before the name of a fusion, in an option."""


@dataclass(frozen=True)
class FindingRule(Generic[Subject]):
    """A rule reads a finished report, or its audit alone, and says what it finds."""

    id: str  # words joined by hyphens, of the findings that it makes
    looks_for: str  # what fires it, in one line, as docs/findings.md has it
    look: Callable[[Subject], Iterable[Observation]]  # a report's own findings are still empty
    page: str = "fallbacks"  # of the explorer, where the evidence is
    # Of a token, which its gain comes out of; where there are none, those of its components.
    parts: tuple[str, ...] = ()

    def find(self, subject: Subject) -> Iterator[Finding]:
        """What it finds; nothing, where there is nothing."""
        for observation in self.look(subject):
            yield Finding(
                self.id,
                observation.ms_per_token,
                observation.text,
                observation.fix,
                observation.evidence,
                observation.components,
                observation.subject,
                parts=self.parts or observation.components,
                tries=observation.tries,
                kernels=observation.kernels,
            )


def rule(
    name: str, page: str, looks_for: str, parts: tuple[str, ...] = ()
) -> Callable[[Callable[[Subject], Iterable[Observation]]], FindingRule[Subject]]:
    """Makes a rule of a function that looks."""
    return lambda look: FindingRule(name, looks_for, look, page, parts)

"""Every document that a command draws, filled with any text: what holds for one holds for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from spark_prof.ab.result import AbOutcome
from spark_prof.analyzers.classify.listing import Classified
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.recorded_work import RecordedRun, UnplacedKernels
from spark_prof.dashboards.ab_report import render_ab
from spark_prof.dashboards.classification import render_classification
from spark_prof.dashboards.compare_report import CompareRun, render_comparison
from spark_prof.dashboards.dataset_report import render_clients, render_dataset
from spark_prof.dashboards.doctor_report import Diagnosis, render_diagnosis
from spark_prof.dashboards.kernel_races import render_bench, render_work
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.replacement_kernels import KernelCheckRun, render_checks, render_kernels
from spark_prof.dashboards.tune_report import render_tune
from spark_prof.datasets.every_recording import Dataset
from spark_prof.kernels.bench.request import BenchRequest
from spark_prof.kernels.bench.results import BenchReport as Bench
from spark_prof.kernels.bench.shapes import DenseShape, Layer, Piece, Recorded
from spark_prof.kernels.check.verdict import CheckVerdict
from spark_prof.kernels.registry import find
from spark_prof.kernels.tuning import TuningRun
from spark_prof.traces.benchmarks.load_test import BenchmarkResult
from spark_prof.tune.tune_result import TuneResult

from .filled import filled, filled_as
from .sample import HOSTILE_NAME

TEXTS = {
    "plain": "experts",
    "hostile": HOSTILE_NAME,
    "endless": HOSTILE_NAME + "x" * 5000,
    # Two columns each, in a name without a space at which a line could break.
    "wide": "量子化カーネル" * 60,
    "wide words": "추론 커널 " * 60,
    "combining": "e\u0301" * 300,
}

Draw = Callable[[str, Layout], str]


def whole(report: Report, kind: str) -> str:
    """Every section of a report."""
    return render_report(report, Layout(kind), whole=True)


def _checks(text: str, layout: Layout) -> str:
    verdicts = (
        filled_as(CheckVerdict, text),
        replace(filled_as(CheckVerdict, text), status="failed"),
    )
    return render_checks(KernelCheckRun(tuple(find("qkv-w4a16")), text, "cpu", verdicts), layout)


def _work(text: str, layout: Layout) -> str:
    piece: Piece = (DenseShape(48, 160, (Layer(text, "o", 48, 160),)), "bf16")
    ran = {(piece, 1): Recorded((text, text), 5.0, 3, proven=True)}
    request = BenchRequest(tokens=(1, 2), formats=("bf16",), work=[piece], recorded=ran)
    left = (UnplacedKernels(text, 5.0, text),)
    return render_work(request, RecordedRun(text, text, "9.0", 1, (1,), (), 7.0, left), layout)


DOCUMENTS: Mapping[str, Draw] = {
    "report": lambda text, layout: render_report(filled(text), layout, whole=True),
    "short report": lambda text, layout: render_report(filled(text), layout),
    "ab": lambda text, layout: render_ab(filled_as(AbOutcome, text), layout),
    "tune": lambda text, layout: render_tune(filled_as(TuneResult, text), layout),
    "compare": lambda text, layout: render_comparison(filled_as(CompareRun, text), layout),
    "doctor": lambda text, layout: render_diagnosis(filled_as(Diagnosis, text), layout),
    "dataset": lambda text, layout: render_dataset(filled_as(Dataset, text), layout),
    "classify": lambda text, layout: render_classification(
        text, [filled_as(Classified, text)] * 3, layout
    ),
    "clients": lambda text, layout: render_clients([filled_as(BenchmarkResult, text)], layout),
    "kernels list": lambda text, layout: render_kernels(
        find(None), [filled_as(TuningRun, text)], layout
    ),
    "kernels check": _checks,
    "kernels bench --list": _work,
    "kernels bench": lambda text, layout: render_bench(filled_as(Bench, text), layout),
}
"""By the command: from a text for every field, and a format, to what is drawn."""


@cache
def draw(document: str, text: str, kind: str) -> str:
    """A document with this one of `TEXTS`, in a format; drawn once for all tests."""
    return DOCUMENTS[document](TEXTS[text], Layout(kind))

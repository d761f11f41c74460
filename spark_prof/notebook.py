"""What commands find, as a notebook and a console show it, and kernels as a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_prof.analyzers.classify.listing import Classified
from spark_prof.analyzers.model import Report
from spark_prof.analyzers.why import Why
from spark_prof.dashboards import compare_report
from spark_prof.dashboards.classification import render_classification
from spark_prof.dashboards.doctor_report import Diagnosis, document_of, render_diagnosis
from spark_prof.dashboards.render import Layout, render_report
from spark_prof.dashboards.why_report import document_of_why, render_why

if TYPE_CHECKING:
    import pandas as pd

    from spark_prof.traces.bundle import Bundle

_KEYS = ["layer", "role", "component", "phase", "name"]


@dataclass(frozen=True, repr=False, eq=False)
class NotebookReport(Report):
    """A report that a cell can end with: it shows its one screen.

    report = spark_prof.report("my-run")
    report.kernels_frame().groupby("component").us.sum()
    """

    source: str | Bundle = ""
    """What it was made of, for the rows that a report sums up."""
    rank: int | None = None

    @classmethod
    def of(cls, report: Report, source: str | Bundle, rank: int | None) -> NotebookReport:
        """The same report, of a rank of that source."""
        values = {field.name: getattr(report, field.name) for field in fields(Report)}
        return cls(**values, source=source, rank=rank)

    def _repr_html_(self) -> str:
        from spark_prof.dashboards.render.html_page import fragment
        from spark_prof.dashboards.short_report import short_report

        return fragment(short_report(self))

    def _repr_markdown_(self) -> str:
        return render_report(self, Layout("md"))

    def __repr__(self) -> str:
        return render_report(self, Layout())

    def kernels_frame(self) -> pd.DataFrame:
        """The kernels of a typical step of each phase, a row a layer, role, component and kernel.

        Returns:
            layer (-1 for none), role, component, phase, name, calls (a step), us (of all calls of a
            step), bound_us and bytes (what these calls need at least; NaN where unknown), engine,
            precision and evidence (how those two are known).

        Raises:
            CommandError: the source is gone or damaged.
        """
        from spark_prof.analyzers.summary import summary_of
        from spark_prof.datasets.opened import opened

        source = self.source
        with opened(source) if isinstance(source, str) else nullcontext(source) as bundle:
            sums = summary_of(bundle, self.rank).sums
        figures = sums.drop(columns="calls").rename(columns={"step_calls": "calls"})
        rows = figures.groupby(_KEYS, observed=True, as_index=False)[["us", "calls"]].sum()
        needs, labels = self._needs(), {(k.component, k.name): k for k in self.kernels}
        keys = rows[["phase", "component", "role", "name"]].astype(str).itertuples(index=False)
        of_calls = np.array([needs.get(tuple(key), (None, None)) for key in keys], np.float64)
        rows[["bound_us", "bytes"]] = of_calls.reshape(-1, 2) * rows[["calls"]].to_numpy()
        kernels = [labels.get(key) for key in zip(rows["component"], rows["name"], strict=True)]
        for name in ("engine", "precision", "evidence"):
            rows[name] = [getattr(kernel, name, None) for kernel in kernels]
        return rows.sort_values("us", ascending=False, ignore_index=True)

    def _needs(self) -> Mapping[tuple[Any, ...], tuple[float | None, float | None]]:
        """Lower bound and bytes of one call, by phase, component, role and kernel."""
        phases = self.roofline.phases if self.roofline else ()
        return {
            (phase.phase, *row.place[:2], row.name): (row.floor_us, row.needed_bytes)
            for phase in phases
            for row in phase.rows
        }


_SHOWN_SECTIONS = 3
"""Of a comparison in a cell: what is compared, its steps, and what the difference consists of."""


@dataclass(frozen=True, repr=False)
class NotebookComparison(compare_report.CompareRun):
    """A comparison that a cell can end with: it shows its answer and the parts of the difference.

    spark_prof.compare("before", "after").comparisons[0].phases[0].like.us
    """

    def _repr_html_(self) -> str:
        from spark_prof.dashboards.render.html_page import fragment

        whole = compare_report.document(self)
        return fragment(replace(whole, sections=whole.sections[:_SHOWN_SECTIONS]))

    def _repr_markdown_(self) -> str:
        return compare_report.render_comparison(self, Layout("md"))

    def __repr__(self) -> str:
        return compare_report.render_comparison(self, Layout())


@dataclass(frozen=True, repr=False)
class NotebookWhy(Why):
    """An answer of `why` that a cell can end with.

    spark_prof.why("models/nvfp4", "models/fp8").sides[0].bytes
    """

    @classmethod
    def of(cls, why: Why) -> NotebookWhy:
        """The same answer."""
        return cls(**{field.name: getattr(why, field.name) for field in fields(Why)})

    def _repr_html_(self) -> str:
        from spark_prof.dashboards.render.html_page import fragment

        return fragment(document_of_why(self))

    def _repr_markdown_(self) -> str:
        return render_why(self, Layout("md"))

    def __repr__(self) -> str:
        return render_why(self, Layout())


@dataclass(frozen=True, repr=False)
class NotebookDiagnosis(Diagnosis):
    """A diagnosis of `doctor` that a cell can end with.

    spark_prof.doctor("serve.log", gpu="gb10").findings[0].fix
    """

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> NotebookDiagnosis:
        """The same diagnosis."""
        return cls(**{field.name: getattr(diagnosis, field.name) for field in fields(Diagnosis)})

    def _repr_html_(self) -> str:
        from spark_prof.dashboards.render.html_page import fragment

        return fragment(document_of(self))

    def _repr_markdown_(self) -> str:
        return render_diagnosis(self, Layout("md"))

    def __repr__(self) -> str:
        return render_diagnosis(self, Layout())


@dataclass(frozen=True, repr=False)
class NotebookClassification:
    """Kernels by what they run on, which a cell can end with.

    spark_prof.classify("my-run").rows[0].precision
    """

    title: str
    rows: tuple[Classified, ...]
    lost: tuple[str, ...] = ()  # what could not be read

    def frame(self) -> pd.DataFrame:
        """A row a kernel, with the columns of `classify --format json`."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.rows])

    def _repr_markdown_(self) -> str:
        return render_classification(self.title, self.rows, Layout("md"))

    def __repr__(self) -> str:
        return render_classification(self.title, self.rows, Layout())

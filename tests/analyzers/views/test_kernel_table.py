"""The table of kernels holds what the report says, and what is looked for is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.roofline.roofline_rows import RooflineRow
from spark_prof.analyzers.step_time import StepKind, kinds_of
from spark_prof.analyzers.views.kernel_calls import KernelFacts, facts_of, search
from spark_prof.datasets.prepared import Prepared, prepare
from tests.rows import each_row

DATA = Path(__file__).parents[2] / "data"
BUNDLES = ("code-h100/qwen3-30b-a3b-nvfp4", "architectures/deepseek-v2/default")


@pytest.fixture(scope="module", params=BUNDLES)
def prepared(request: pytest.FixtureRequest) -> Prepared:
    return prepare(str(DATA / request.param))


def test_every_kernel_of_the_report_is_there(prepared: Prepared) -> None:
    report = prepared.report
    every = StepKind("all", None, report.steps.count)
    assert {entry.row for entry in _facts(prepared, every)} == set(report.kernels)
    decode = next(kind for kind in kinds_of(prepared.steps) if kind.word == "decode")
    facts = _facts(prepared, decode)
    assert sum(entry.share for entry in facts) == pytest.approx(1)
    assert report.roofline
    assert report.roofline.decode
    floors: dict[tuple[str, str], list[RooflineRow]] = {}
    for row in report.roofline.decode.rows:
        floors.setdefault((row.name, row.component), []).append(row)
    for entry in facts:
        assert prepared.kernels.names[entry.place] == entry.row.name
        assert entry.us == pytest.approx(entry.row.decode_us_per_step)
        assert entry.calls == pytest.approx(entry.row.decode_calls_per_step)
        rows = floors.get((entry.row.name, entry.row.component), [])
        assert (entry.floor is None) is (not rows)
        if not entry.floor:
            continue
        # A call of all roles; nothing of it but the time is known where no need is.
        calls = sum(row.calls for row in rows)
        assert entry.floor.calls == pytest.approx(calls)
        assert entry.calls == pytest.approx(calls)
        for value, of in (
            (entry.floor.us, [row.us * row.calls for row in rows]),
            (entry.floor.needed_bytes, [(r.needed_bytes or 0.0) * r.calls for r in rows]),
            (entry.floor.floor_us, [(row.floor_us or 0.0) * row.calls for row in rows]),
        ):
            assert (value or 0.0) * calls == pytest.approx(sum(of))
        left = [row.left_us for row in rows if row.left_us is not None]
        assert entry.floor.left_us == pytest.approx(sum(left) if left else None)
        assert {row.role for row in rows} - {""} <= set(entry.row.roles)


def _facts(prepared: Prepared, kind: StepKind) -> tuple[KernelFacts, ...]:
    return facts_of(prepared.report, prepared.kernels.names, kind, prepared.sums)


@each_row(
    "wanted",
    [{"text": "MARLIN moe"}, {"engine": "cuda-core"}, {"precision": "bf16", "component": "experts"},
     {"text": "no such kernel"}, {"text": "mlp.experts"}, {}],
)  # fmt: skip
def test_a_search_finds_all_that_fits_and_no_more(
    prepared: Prepared, wanted: dict[str, str]
) -> None:
    facts = _facts(prepared, StepKind("all", None, prepared.report.steps.count))
    found = search(facts, **wanted)
    for entry in facts:
        row = entry.row
        text = f"{row.name} {row.component} {row.roles} {row.conversion or ''}".lower()
        text += entry.role
        fits = (
            all(word in text for word in wanted.get("text", "").lower().split())
            and wanted.get("engine", "") in ("", row.engine)
            and wanted.get("precision", "") in ("", row.precision)
            and wanted.get("component", "") in ("", row.component)
        )
        assert fits == (entry in found)

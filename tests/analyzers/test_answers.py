"""The answers say what the figures of the report say, and nothing where there are none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from spark_prof.analyzers.answers import answers_of
from spark_prof.analyzers.conversions.conversion_rows import Conversions
from spark_prof.analyzers.model import Report
from spark_prof.traces.bundle import Bundle
from tests.analyzers.reported import reported
from tests.support import Piece, Recorded, kineto, operator, step

CODE = Path(__file__).parents[1] / "data" / "code-h100"


@cache
def report(name: str) -> Report:
    return reported(Bundle(CODE / name))


def text(found: Report, which: str) -> str:
    return next(answer.text for answer in answers_of(found) if answer.id == which)


def test_fp4_that_products_compute_in_is_no_storage() -> None:
    native = tuple(
        replace(row, precision="fp4") if row.weights == "fp4" else row
        for row in report("dense-nvfp4").kernels
    )
    found = text(replace(report("dense-nvfp4"), kernels=native), "tensor-cores")
    assert "fp4 on tensor cores" in found
    assert "no product" not in found


def test_a_floor_that_covers_little_is_not_told() -> None:
    found = report("dense-awq")
    assert found.roofline is not None
    phases = tuple(
        replace(phase, placed_us=0.4 * phase.kernels_us) for phase in found.roofline.phases
    )
    little = replace(found, roofline=replace(found.roofline, phases=phases))
    assert "memory" not in {answer.id for answer in answers_of(little)}


def test_grids_of_few_kernels_say_nothing_of_the_rest() -> None:
    found = report("dense-awq")
    assert found.shapes is not None
    whole = sum(row.us for row in found.shapes.rows)

    def judged(share: float) -> str:
        """The answer where only so much of the time has a known grid, each fully busy."""
        row = found.shapes.rows[0]
        rows = (
            replace(row, us=share * whole, busy=1.0),
            replace(row, us=(1 - share) * whole, busy=None),
        )
        return text(replace(found, shapes=replace(found.shapes, rows=rows)), "shapes")

    assert judged(0.03) == "Not known: of 97 % of the decode kernel time nothing tells it."
    assert judged(0.8).startswith("Of 80 % of the decode kernel time, which can be judged, 0.0 %")
    assert judged(1.0).startswith("0.0 % of the decode kernel time runs on less than half")


def test_a_cpu_engine_has_no_tensor_cores(tmp_path: Path) -> None:
    trace = kineto(operator("aten::mm", 1000, 2000), operator("aten::mm", 3000, 4000))
    recorded = Recorded({0: [Piece([step(0, 0, 5000)], trace=trace)]})
    found = reported(recorded.assemble(tmp_path))
    assert {answer.id for answer in answers_of(found)} <= {"formats", "memory", "overhead"}
    assert not any("GPU" in answer.text for answer in answers_of(found))
    assert "no operator runs for" in text(found, "overhead")


def test_nothing_is_said_of_what_is_not_there() -> None:
    bare = replace(
        report("dense-awq"), kernels=(), roofline=None, shapes=None, accounts=(),
        conversions=Conversions(0.0, 0.0, ()),
    )  # fmt: skip
    assert answers_of(bare) == ()

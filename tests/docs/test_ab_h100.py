"""The page of ab shows what the results of the H100 say."""

from __future__ import annotations

from spark_prof.ab.result import Result, from_json
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "ab.md"


def _result(name: str) -> Result:
    path = ROOT / "benchmarks" / "results" / "ab" / f"{name}.json"
    return from_json(path.read_bytes(), str(path))


def test_gains_are_those_of_the_results() -> None:
    shown = tables(PAGE, "On an H100")[0]
    expected = []
    for name in dict.fromkeys(row[0] for row in shown):
        for run in _result(name).runs:
            found = run.estimate
            assert found.a_us is not None
            assert found.b_us is not None
            assert found.gain is not None
            expected.append(
                [
                    name,
                    str(run.requests),
                    f"{found.a_us / 1e3:.3f} ms",
                    f"{found.b_us / 1e3:.3f} ms",
                    f"{found.gain.value:.3f} x",
                    f"{found.gain.low:.3f} to {found.gain.high:.3f}",
                ]
            )
    assert shown == expected


def test_components_are_those_of_the_recordings() -> None:
    (attribution,) = _result("gpt-oss-20b-quantized").attributions
    rows = {row.component: row for row in attribution.components}
    for name, a, b in tables(PAGE, "On an H100")[1]:
        assert (a, b) == (f"{rows[name].a_us:.1f} us", f"{rows[name].b_us:.1f} us")
    device = attribution.b.corrected_us - rows["waiting for the host"].b_us
    text = PAGE.read_text(encoding="utf-8")
    assert f"would take {device / 1e3:.2f} ms, {attribution.a.corrected_us / device:.2f} x" in text


def test_what_batch_8_is_made_of_is_in_its_recordings() -> None:
    *rows, saved, measured = tables(PAGE, "On an H100")[2]
    for place, name in ((1, "gpt-oss-20b-batch-8"), (3, "qwen3-30b-a3b-nvfp4-batch-8")):
        (found,) = _result(name).attributions
        of = {row.component: row for row in found.components}
        for row in rows:
            part = of[row[0]]
            assert row[place : place + 2] == [f"{part.a_us:.1f} us", f"{part.b_us:.1f} us"]
        assert saved[place : place + 2] == ["", f"{found.explained_us:.1f} us"]
        assert measured[place : place + 2] == ["", f"{found.gain_us:.1f} us"]
        assert found.adds_up
        assert found.nothing_else_moved
        assert found.ran_everywhere

"""A clock that is set while a recording runs: no figure takes it, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_prof.analyzers.summary import summarize
from spark_prof.dashboards.render import RENDERERS
from spark_prof.datasets.compared import read_side
from spark_prof.errors import CommandError
from spark_prof.traces.assemble import open_bundle
from tests.clock_faults import clock_set

DATA = Path(__file__).parents[1] / "data"
GRAPH = DATA / "compare-h100" / "gpt-graph"
ALL_WATCHED = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
SECOND, HOUR = 10**9, 3600 * 10**9
BACK = [
    (what, -by)
    for what in ("all", "all between", "host", "host between")
    for by in (SECOND // 5, SECOND, HOUR)
]
BESIDE = [("device", by) for by in (-HOUR, -SECOND, SECOND, HOUR)] + [("host", SECOND)]


@pytest.mark.parametrize("source", [GRAPH, ALL_WATCHED], ids=lambda path: path.name)
def test_no_figure_takes_a_step_of_a_clock_that_was_set(source: Path, tmp_path: Path) -> None:
    """Against the same steps of the sound recording, whatever was set, whenever, however far."""
    sound = read_side(str(source))
    wrong = []
    for number, (what, by) in enumerate([*BACK, *BESIDE, ("all", HOUR)]):
        for at in (0.3, 0.7):
            out = clock_set(source, tmp_path / f"{number}-{at}", at, by, what)
            side = read_side(str(out))
            report = side.report
            steps = side.steps.set_index("step")
            same = sound.steps.set_index("step").loc[steps.index]
            # A step beside one that is left out begins or ends by the host's clock alone.
            apart = (steps["step_us"] - same["step_us"]).abs()
            inside = apart.iloc[1:-1]
            kept = (inside < 1).mean() >= 0.9 and apart.max() < 200_000
            told = report.steps.left_out > 0 and "left out of all figures" in report.notes[0]
            if source == GRAPH and (what, by) == ("all", HOUR):
                # Between two stretches the engine is not watched, and nothing shows.
                told = True
            if not (kept and told):
                wrong.append((what, by, at, float(apart.max()), report.steps.left_out))
    assert not wrong


@pytest.mark.parametrize("source", [GRAPH, ALL_WATCHED], ids=lambda path: path.name)
def test_sound_recordings_lose_nothing(source: Path) -> None:
    report = summarize(open_bundle(source))
    assert report.steps.left_out == 0
    assert not any("clock was set" in note for note in report.notes)


def test_what_is_left_out_stands_at_the_headline(tmp_path: Path) -> None:
    report = summarize(open_bundle(clock_set(GRAPH, tmp_path / "b", 0.4, -SECOND, "all")))
    for kind in ("text", "md"):
        drawn = " ".join(RENDERERS[kind](report).split())
        assert drawn.index("steps left out: a clock was set") < drawn.index("What was recorded")
        assert "the clock was set back" in drawn
    assert "steps left out: a clock was set" in RENDERERS["html"](report)
    assert report.steps.left_out > 0
    assert f'"left_out": {report.steps.left_out}' in RENDERERS["json"](report)
    assert "the clock was set back" in RENDERERS["json"](report)


def test_a_long_wait_is_told_and_kept(tmp_path: Path) -> None:
    out = clock_set(ALL_WATCHED, tmp_path / "b", 0.4, SECOND, "all")
    report = summarize(open_bundle(out))
    assert report.steps.left_out == 0
    [note] = [note for note in report.notes if "times the median of its phase" in note]
    assert "took 1.0 s (step" in note


def test_a_minute_in_the_only_prefill_is_left_out(tmp_path: Path) -> None:
    out = clock_set(ALL_WATCHED, tmp_path / "b", 0.5, HOUR, "all")
    report = summarize(open_bundle(out))
    assert report.steps.left_out > 0
    assert report.steps.prefill_us is None or report.steps.prefill_us.mean < 1e6


def test_without_any_step_to_believe_it_is_refused(tmp_path: Path) -> None:
    out = clock_set(ALL_WATCHED, tmp_path / "b", 0.0, HOUR, "device")
    with pytest.raises(CommandError, match="no step whose times can be believed"):
        summarize(open_bundle(out))

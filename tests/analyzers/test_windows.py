"""Where steps begin and end, for engines written by hand. Times are in ns after ORIGIN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.windows import _long, timed_windows
from spark_prof.dashboards.render import RENDERERS
from spark_prof.datasets.opened import read_side
from spark_prof.errors import CommandError
from spark_prof.traces.assemble import open_bundle
from tests.analyzers.reported import reported
from tests.clock_faults import clock_set
from tests.dashboards.documents import whole
from tests.rows import each_row
from tests.support import ORIGIN, Piece, Recorded, engine, step

DATA = Path(__file__).parents[1] / "data"
GRAPH = DATA / "compare-h100" / "gpt-graph"
ALL_WATCHED = DATA / "h100-qwen3-30b-a3b-nvfp4-graphs"
SECOND, HOUR = 10**9, 3600 * 10**9
BACK = [
    (what, -by)
    for what in ("all", "all between", "host", "host between")
    for by in (SECOND // 5, SECOND, HOUR)
]
PLACES = (0.3, 0.7)
"""When the clock is set, as a share of the recording."""
BESIDE = [("device", by) for by in (-HOUR, -SECOND, SECOND, HOUR)] + [("host", SECOND)]


@pytest.mark.parametrize(
    "source", [GRAPH, pytest.param(ALL_WATCHED, marks=pytest.mark.slow)], ids=lambda path: path.name
)
def test_no_figure_takes_a_step_of_a_clock_that_was_set(source: Path, tmp_path: Path) -> None:
    """Against the same steps of the sound recording, whatever was set, whenever, however far."""
    sound = read_side(str(source))
    wrong = []
    faults = [*BACK, *BESIDE, ("all", HOUR)]
    # The quick one of the two recordings takes turns.
    for number, (what, by) in enumerate(faults[:: 1 if source == ALL_WATCHED else 4]):
        for at in PLACES if source == ALL_WATCHED else PLACES[number % 2 :: 2]:
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


@pytest.mark.parametrize(
    "source", [GRAPH, pytest.param(ALL_WATCHED, marks=pytest.mark.slow)], ids=lambda path: path.name
)
def test_sound_recordings_lose_nothing(source: Path) -> None:
    report = reported(open_bundle(source))
    assert report.steps.left_out == 0
    assert not any("clock was set" in note for note in report.notes)


def test_what_is_left_out_stands_at_the_headline(tmp_path: Path) -> None:
    report = reported(open_bundle(clock_set(GRAPH, tmp_path / "b", 0.4, -SECOND, "all")))
    for kind in ("text", "md"):
        drawn = " ".join(RENDERERS[kind](report).split())
        assert drawn.index("steps left out: a clock was set") < drawn.index("Recorded")
        assert "the clock was set back" in whole(report, kind)
    assert "steps left out: a clock was set" in RENDERERS["html"](report)
    assert report.steps.left_out > 0
    assert f'"left_out": {report.steps.left_out}' in RENDERERS["json"](report)
    assert "the clock was set back" in RENDERERS["json"](report)


def test_a_long_wait_is_told_and_kept(tmp_path: Path) -> None:
    out = clock_set(ALL_WATCHED, tmp_path / "b", 0.4, SECOND, "all")
    report = reported(open_bundle(out))
    assert report.steps.left_out == 0
    [note] = [note for note in report.notes if "times the median of its phase" in note]
    assert "took 1.0 s (step" in note


def test_a_minute_in_the_only_prefill_is_left_out(tmp_path: Path) -> None:
    out = clock_set(ALL_WATCHED, tmp_path / "b", 0.5, HOUR, "all")
    report = reported(open_bundle(out))
    assert report.steps.left_out > 0
    assert report.steps.prefill_us is None or report.steps.prefill_us.mean < 1e6


def test_without_any_step_to_believe_it_is_refused(tmp_path: Path) -> None:
    out = clock_set(ALL_WATCHED, tmp_path / "b", 0.0, HOUR, "device")
    with pytest.raises(CommandError, match="no step whose times can be believed"):
        reported(open_bundle(out))


Rows = Sequence[Mapping[str, int]]
MS = 1_000_000


def instants(device: Mapping[int, int]) -> pd.DataFrame:
    """Of each step a kernel that ends as it starts."""
    at = np.array([*device.values()], np.int64) + ORIGIN
    return pd.DataFrame({"step": list(device), "start_ns": at, "end_ns": at})


def spans(found: pd.DataFrame) -> list[tuple[int, int]]:
    begin, finish = found["begin_ns"] - ORIGIN, found["finish_ns"] - ORIGIN
    return list(zip(begin.tolist(), finish.tolist(), strict=True))


def windows(
    folder: Path, pieces: Sequence[Rows], engines: Mapping[int, Rows], device: Mapping[int, int]
) -> pd.DataFrame:
    bundle = Recorded({0: [Piece(steps) for steps in pieces]}, engines).assemble(folder / "b")
    return timed_windows(bundle, 0, instants(device)).steps


IN_TURN = [step(0, 10, 80), step(1, 110, 180)]
UNKNOWN = None


@each_row(
    ("pieces", "engines", "device", "wanted", "engine_ns"),
    [
        pytest.param([[*IN_TURN, step(2, 210, 280)]],
                     {0: [engine(0, 0, 90), engine(1, 100, 190), engine(2, 200, 290)]},
                     {0: 70, 1: 170, 2: 270}, [(10, 100), (100, 200), (200, 290)], [80, 100, 100],
                     id="what passes between two schedulings is the earlier step's time"),
        pytest.param([[step(0, 10, 20), step(1, 30, 40), step(2, 110, 120)]],
                     {0: [engine(0, 0, 105), engine(1, 22, 205), engine(2, 106, 305)]},
                     {0: 100, 1: 200, 2: 300}, [(10, 100), (100, 200), (200, 305)], [95, 100, 100],
                     id="each batch is scheduled while the device still works on the one before"),
        pytest.param([[step(0, 10, 80), step(1, 1010, 1080)]],
                     {0: [engine(0, 0, 90, unfinished=0), engine(1, 1000, 1090)]},
                     {0: 70, 1: 1070}, [(10, 90), (1000, 1090)], [80, 90],
                     id="an idle pause belongs to no step"),
        pytest.param([[step(0, 10, 80)], [step(1, 510, 580), step(2, 610, 680)]],
                     {0: [engine(0, 0, 90), engine(1, 100, 590), engine(2, 600, 690)]},
                     {0: 70, 1: 570, 2: 670}, [(10, 90), (510, 600), (600, 690)], [80, 80, 100],
                     id="the flush between two pieces belongs to no step"),
        pytest.param([[*IN_TURN, step(2, 213, 280)]],
                     {0: [engine(0, 0, 90), engine(2, 203, 291)]}, {0: 70, 2: 270},
                     [(10, 110), (110, 203), (203, 291)], [80, UNKNOWN, 111],
                     id="a step that the scheduler never saw keeps the others exact"),
        pytest.param([[step(0, 10, 80)]], {0: [engine(0, 0, -ORIGIN, unfinished=0)]}, {0: 70},
                     [(10, 80)], [UNKNOWN], id="an update that never came"),
        pytest.param([[step(0, 10, 80), step(1, 310, 380, key=100)]],
                     {0: [engine(0, 0, 90), engine(0, 300, 390), engine(0, 900, 990)]},
                     {0: 70, 1: 370}, [(10, 300), (300, 390)], [80, 300],
                     id="after a preemption the same request is at the same position again"),
        pytest.param([IN_TURN[:1], IN_TURN[1:]], {0: [engine(0, 0, 130), engine(1, 100, 190)]},
                     {0: 70, 1: 170}, [(10, 110), (110, 190)], [120, 80],
                     id="of two steps that overlap the later one has the time"),
        pytest.param([[step(0, 10, 20), step(1, 30, 40), step(2, 50, 60)]],
                     {0: [engine(0, 0, 105), engine(1, 22, 106), engine(2, 45, 107)]},
                     {0: 100, 2: 150}, [(10, 100), (100, 100), (100, 150)], [95, 1, 1],
                     id="the second step launched nothing, the device is still at the first"),
        pytest.param([[step(0, 10, 80)]], {}, {}, [(10, 80)], [UNKNOWN], id="without any kernel"),
        *(
            pytest.param([[step(0, 10, 80), step(1, 80 + apart, 150 + apart)]], {},
                         {0: 70, 1: 140 + apart},
                         [(10, 80 if idle else 80 + apart), (80 + apart, 150 + apart)],
                         [UNKNOWN] * 2, id="without a scheduler a long pause is idle")
            for apart, idle in ((MS, False), (49 * MS, False), (50 * MS, True), (900 * MS, True))
        ),
    ],
)  # fmt: skip
def test_where_steps_begin_and_end(
    tmp_path: Path, pieces: Sequence[Rows], engines: Mapping[int, Rows], device: Mapping[int, int],
    wanted: list[tuple[int, int]], engine_ns: list[float | None],
) -> None:  # fmt: skip
    found = windows(tmp_path, pieces, engines, device)
    assert spans(found) == wanted
    times = found["engine_ns"].astype(object).where(found["engine_ns"].notna(), None)
    assert times.tolist() == engine_ns
    assert found["output_tokens"].isna().all() or engines


def test_every_replica_has_its_own_scheduler(tmp_path: Path) -> None:
    engines = {0: [engine(0, 0, 90, output_tokens=3)], 1: [engine(1, 100, 190, output_tokens=5)]}
    found = windows(tmp_path, [IN_TURN], engines, {0: 70, 1: 170})
    assert found["output_tokens"].tolist() == [3, 5]


@each_row(
    ("updated", "device", "end"),
    [
        pytest.param((100, 190), {0: 70, 1: 170}, 190, id="its update comes last"),
        pytest.param((100, 190), {0: 70, 1: 230}, 230, id="its last kernel does"),
        pytest.param((100, None), {0: 70, 1: 170}, 180, id="no update: the end on the host"),
        pytest.param((100, None), {0: 70, 1: 230}, 230, id="no update: its last kernel"),
        pytest.param((100, 190), {0: 240}, 240, id="the kernels of the step before it run on"),
    ],
)
def test_the_end_of_the_last_step(
    tmp_path: Path, updated: tuple[int, int | None], device: dict[int, int], end: int
) -> None:
    seen = [engine(n, 100 * n, at) for n, at in enumerate(updated) if at is not None]
    assert spans(windows(tmp_path, [IN_TURN], {0: seen}, device))[-1][1] == end


def test_the_last_update_may_wait_for_the_recording_to_be_written(tmp_path: Path) -> None:
    steps = [step(n, 100 * n * MS + 10 * MS, 100 * n * MS + 80 * MS) for n in range(3)]
    device = {n: (100 * n + 95) * MS for n in range(3)}
    for last, end in ((310, 310), (900, 300)):  # other steps end 5 ms behind their last kernel
        updates = [engine(n, 100 * n * MS, (100 * n + 110) * MS) for n in range(2)]
        updates.append(engine(2, 200 * MS, last * MS))
        found = windows(tmp_path / str(last), [steps], {0: updates}, device)
        assert spans(found)[-1] == (200 * MS, end * MS)
        assert found["engine_ns"].tolist()[1:] == [100 * MS, (end - 210) * MS]


def test_a_rank_that_nobody_waits_for_may_run_on_after_the_update(tmp_path: Path) -> None:
    """The scheduler has its tokens from rank 0; on a busy machine rank 1 comes 11 ms later."""
    steps = [step(0, 10 * MS, 80 * MS), step(1, 110 * MS, 180 * MS), step(2, 210 * MS, 280 * MS)]
    updates = [engine(n, 100 * MS * n, 100 * MS * n + 82 * MS) for n in range(3)]
    facts = {"parallel": {"tensor": 2, "pipeline": 1, "data": 1}}
    ranks = {0: [Piece(steps)], 1: [Piece(steps)]}
    bundle = Recorded(ranks, {0: updates}, facts).assemble(tmp_path / "b")
    kernels = instants({0: 75 * MS, 1: 193 * MS, 2: 275 * MS})
    assert timed_windows(bundle, 1, kernels).steps["step"].tolist() == [0, 1, 2]
    assert len(timed_windows(bundle, 0, kernels).steps) < 3


def test_an_idle_server_may_wait_for_the_next_request(tmp_path: Path) -> None:
    """Ten steps of 1 ms, two minutes without a request, and ten more: no step took so long."""
    starts = [n * MS for n in range(10)] + [120 * SECOND + n * MS for n in range(10)]
    rows = [step(n, at, at + MS // 2) for n, at in enumerate(starts)]
    ended = [engine(n, at, at + MS // 2, unfinished=int(n != 9)) for n, at in enumerate(starts)]
    bundle = Recorded({0: [Piece(rows)]}, {0: ended}).assemble(tmp_path / "b")
    found = timed_windows(bundle, 0, instants({n: at + MS // 4 for n, at in enumerate(starts)}))
    assert (len(found.left_out), found.notes) == (0, ())
    assert (found.steps["finish_ns"] - found.steps["begin_ns"]).max() == MS


@each_row(
    ("usual_s", "at", "length_s", "stalled"),
    [
        (0.01, 4, 40, True),
        # The second piece's steps follow on each other as the first one's do.
        (0.01, 14, 40, True),
        # Nothing tells what was between two pieces.
        (0.01, 9, 40, False),
        # Fifty times what is usual is more than a minute here.
        (20, 4, 100, False),
        (20, 4, 1100, True),
    ],
)
def test_a_step_is_long_beside_what_is_usual(
    usual_s: float, at: int, length_s: float, stalled: bool
) -> None:
    lengths = np.full(20, int(usual_s * SECOND))
    lengths[at] = length_s * SECOND
    start = np.append(0, np.cumsum(lengths[:-1]))
    steps = pd.DataFrame({"piece": [0] * 10 + [1] * 10, "unfinished": 1, "phase": "decode"})
    length, long = _long(steps, start)
    assert length[:-1].tolist() == lengths[:-1].tolist()
    assert np.flatnonzero(long).tolist() == [at] * stalled

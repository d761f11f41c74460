"""What is recorded of drafts, against a scheduler made by hand that accepts as planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_prof.profiler.batch import read_batch
from spark_prof.profiler.engine import EngineRecording
from spark_prof.profiler.process import Process
from spark_prof.profiler.settings import Settings
from spark_prof.traces.assemble import assemble
from spark_prof.traces.bundle import Bundle
from spark_prof.traces.chunks import RECORDING_FILE, facts_name, pieces_folder, write_json
from tests.support import MODULES, eager_decode

from .fakes import batch, decode, prefill


class Request:
    """A request that lives until it is told to end."""

    def __init__(self, finished: bool = False, stale: int = 0, drop: bool = False) -> None:
        self.finished, self.num_stale_output_tokens, self.drop_stale_output = finished, stale, drop

    def is_finished(self) -> bool:
        return self.finished


class Scheduler:
    """Hands out the batches in turn; takes in what was sampled, and then forgets who has ended."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)
        self.requests = {name: Request() for each in batches for name in each.num_scheduled_tokens}
        self.ends: set[str] = set()

    def schedule(self) -> Any:
        return self.batches.pop(0)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        given = zip(
            model_runner_output.req_id_to_index, model_runner_output.sampled_token_ids, strict=True
        )
        outputs = [
            SimpleNamespace(request_id=name, new_token_ids=ids, finish_reason=None)
            for name, ids in given
            if ids
        ]
        for name in self.ends:
            self.requests.pop(name, None)
        return {0: SimpleNamespace(outputs=outputs)}

    def get_num_unfinished_requests(self) -> int:
        return len(self.batches)


def sampled(tokens: dict[str, int]) -> Any:
    """A ModelRunnerOutput with so many tokens for each request."""
    return SimpleNamespace(
        req_id_to_index={name: at for at, name in enumerate(tokens)},
        sampled_token_ids=[[9] * count for count in tokens.values()],
    )


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., EngineRecording]:
    def recorder(scheduler: Any, *faults: str) -> EngineRecording:
        settings = Settings(str(tmp_path / "b"), faults=faults)
        recording = EngineRecording(scheduler, settings, Process(settings, "engine0", 0))
        recording.install()
        return recording

    return recorder


def made(tmp_path: Path) -> Bundle:
    """The bundle with what was written, beside a rank with steps."""
    folder = pieces_folder(tmp_path / "b")
    write_json(folder, RECORDING_FILE, {"command": [], "settings": {}})
    write_json(folder, facts_name("rank0"), {"process": "rank0", "rank": 0, "modules": MODULES})
    eager_decode().write(folder, "rank0", 0)
    return assemble(tmp_path / "b", state="complete")


def drafts(tmp_path: Path) -> list[tuple[int, ...]]:
    frame = made(tmp_path).frame("drafts", 0)
    return [tuple(map(int, row)) for row in frame.itertuples(index=False)]


def verify(position: int, **proposed: int) -> Any:
    """A step that verifies so many drafts of each request, all at one position."""
    return batch(
        {name: 1 + count for name, count in proposed.items()},
        cached=dict.fromkeys(proposed, position),
        drafts=proposed,
    )


PATTERNS: Sequence[Sequence[int]] = (
    (0,), (1,), (2,), (3,), (0, 1), (1, 0), (7, 0, 3), (2, 2, 1, 0), (0, 0, 0, 4), (5, 6, 7),
    (1, 2, 3, 4, 5, 6, 7), (3, 0, 3, 0, 1),
)  # fmt: skip
"""How many drafts are accepted at most, step after step."""


@pytest.mark.parametrize("most", range(1, 8))
def test_planted_acceptance_is_what_brute_force_counts(
    record: Any, tmp_path: Path, most: int
) -> None:
    plan = {f"r{n}": pattern for n, pattern in enumerate(PATTERNS)}
    steps, truth = [], []
    position = Counter(dict.fromkeys(plan, 5))
    for at in range(20):
        # Each request is in two of three steps, and proposes fewer drafts now and then.
        taking = {name: most - (at + n) % 2 * (most > 1) for n, name in enumerate(plan)
                  if (at + n) % 3}  # fmt: skip
        output = batch(
            {name: 1 + count for name, count in taking.items()},
            cached={name: position[name] for name in taking},
            drafts=taking,
        )
        tokens = {}
        for name, count in taking.items():
            accepted = min(plan[name][at % len(plan[name])], count)
            tokens[name] = 1 + accepted
            truth.append((read_batch(output).key, name, position[name], count, accepted))
            position[name] += 1 + accepted
        steps.append((output, sampled(tokens)))
    scheduler = Scheduler(*(output for output, _ in steps))
    recording = record(scheduler)
    for _, result in steps:
        scheduler.update_from_output(scheduler.schedule(), result)
    recording.finish()
    order = list(dict.fromkeys(name for _, name, *_ in truth))
    assert drafts(tmp_path) == [(key, order.index(name), *rest) for key, name, *rest in truth]


def test_where_nothing_is_drafted_no_table_is_written(record: Any, tmp_path: Path) -> None:
    scheduler = Scheduler(prefill(), decode(5))
    recording = record(scheduler)
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule(), sampled({"r0": 1}))
    recording.finish()
    assert not list(pieces_folder(tmp_path / "b").glob("*.drafts.npy"))
    bundle = made(tmp_path)
    assert not any(name.startswith("drafts") for name in bundle.meta.tables)
    assert len(bundle.frame("drafts", 0)) == 0


ALIVE = Request(stale=1)


@pytest.mark.parametrize(
    ("proposed", "tokens", "changed", "rows"),
    [
        pytest.param({"r0": 2, "r1": 0}, {"r0": 3, "r1": 1}, {}, [(0, 5, 2, 2)], id="none drafted"),
        # With asynchronous scheduling a request may end while its next drafts are verified.
        *(
            pytest.param({"r0": 2, "r1": 2}, {"r0": 3, "r1": 2}, {"requests": requests},
                         [(0, 5, 2, -1), (1, 5, 2, 1)], id=name)
            for name, requests in {
                "gone": {"r1": ALIVE},
                "finished": {"r1": ALIVE, "r0": Request(finished=True)},
                "stale": {"r1": ALIVE, "r0": Request(stale=3, drop=True)},
            }.items()
        ),
        pytest.param({"r0": 2}, {"r0": 3}, {"requests": {"r0": Request(drop=True)}},
                     [(0, 5, 2, 2)], id="nothing stale to drop"),
        pytest.param({"r0": 3}, {"r0": 4}, {"ends": {"r0"}}, [(0, 5, 3, 3)], id="its last"),
        pytest.param({"r0": 3}, {"r0": 0}, {}, [(0, 5, 3, -1)], id="nothing sampled"),
        pytest.param({"r0": 3}, {"r0": 2}, {"num_sampled_tokens_per_step": 0}, [], id="a canvas"),
    ],
)  # fmt: skip
def test_what_a_step_tells_of_its_drafts(
    record: Any, tmp_path: Path, proposed: dict[str, int], tokens: dict[str, int],
    changed: dict[str, Any], rows: list[tuple[int, ...]],
) -> None:  # fmt: skip
    scheduler = Scheduler(verify(5, **proposed))
    vars(scheduler).update(changed)
    recording = record(scheduler)
    scheduler.update_from_output(
        scheduler_output=scheduler.schedule(), model_runner_output=sampled(tokens)
    )
    recording.finish()
    assert [row[1:] for row in drafts(tmp_path)] == rows


def test_drafts_that_a_grammar_ruled_out_were_not_proposed(record: Any, tmp_path: Path) -> None:
    output = verify(5, r0=4)
    output.num_invalid_spec_tokens = {"r0": 3}
    scheduler = Scheduler(output)
    recording = record(scheduler)
    scheduler.update_from_output(scheduler.schedule(), sampled({"r0": 2}))
    recording.finish()
    assert [row[1:] for row in drafts(tmp_path)] == [(0, 5, 1, 1)]


def test_a_scheduler_without_requests_costs_the_drafts_alone(record: Any, tmp_path: Path) -> None:
    scheduler = Scheduler(verify(5, r0=3), verify(6, r0=3))
    recording = record(scheduler)
    del scheduler.requests
    for _ in range(2):
        scheduler.update_from_output(scheduler.schedule(), sampled({"r0": 2}))
    recording.finish()
    bundle = made(tmp_path)
    assert len(bundle.frame("engine", 0)) == 2
    assert len(bundle.frame("drafts", 0)) == 0
    assert [line for line in bundle.meta.lost if "hook drafts failed" in line]


def test_names_of_requests_that_ended_are_forgotten(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_prof.profiler.drafts._MOST_NAMES", 2)
    steps = [verify(5, **{f"r{n}": 1, "always": 1}) for n in range(4)]
    scheduler = Scheduler(*steps)
    recording = record(scheduler)
    for n in range(4):
        scheduler.ends = {f"r{n}"}
        scheduler.update_from_output(scheduler.schedule(), sampled({f"r{n}": 1, "always": 2}))
    assert len(recording._drafts._numbers) <= 3
    recording.finish()
    assert [row[1] for row in drafts(tmp_path)] == [0, 1, 2, 1, 3, 1, 4, 1]


def test_many_rows_are_written_before_the_end(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_prof.profiler.drafts._ROWS_PER_PIECE", 4)
    steps = [verify(at, r0=1, r1=1) for at in range(5)]
    scheduler = Scheduler(*steps)
    recording = record(scheduler)
    for _ in steps:
        scheduler.update_from_output(scheduler.schedule(), sampled({"r0": 1, "r1": 2}))
    written = sorted(pieces_folder(tmp_path / "b").glob("*.drafts.npy"))
    assert [len(np.load(path)) for path in written] == [4, 4]
    recording.finish()
    assert len(drafts(tmp_path)) == 10


def test_requests_have_the_numbers_of_the_table_of_requests(record: Any, tmp_path: Path) -> None:
    """Of two that came, the second drafts first; a third has ended, and nothing is known of it."""
    scheduler = Scheduler(verify(5, r1=2), verify(5, r0=1, gone=1))
    scheduler.running, scheduler.waiting = [], []  # type: ignore[attr-defined]
    for each in scheduler.requests.values():
        vars(each).update(num_prompt_tokens=5, num_output_tokens=1, arrival_time=1.0)
    recording = record(scheduler)
    log = recording._requests
    assert log is not None
    del scheduler.requests["gone"]
    numbers = {name: log.number_of(name) for name in ("r0", "r1", "gone")}
    assert sorted(numbers.values()) == [-1, 0, 1]
    for tokens in ({"r1": 3}, {"r0": 1, "gone": 1}):
        scheduler.update_from_output(scheduler.schedule(), sampled(tokens))
    recording.finish()
    found = [(row[1], row[4]) for row in drafts(tmp_path)]
    assert found == [(numbers["r1"], 2), (numbers["r0"], 0), (-1, -1)]

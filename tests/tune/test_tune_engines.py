"""Engines of a tune: whose fault their end is, and that their time is kept."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_prof.ab.command import EngineCommand
from spark_prof.ab.engine_process import Engine
from spark_prof.errors import CommandError
from spark_prof.swaps.progress import ALL_LIVE, Progress
from spark_prof.tune import tune_engines as engines
from spark_prof.tune.journal import Journal
from spark_prof.tune.tune_engines import Engines, TuneSettings, _blamed
from spark_prof.tune.tune_trial import BASE, Pair, Stage, TimeUpError
from tests.ab.engines import fake_vllm

STAGES: tuple[Stage, ...] = ("search", "confirmation", "search")
LOG = f"""
INFO {Progress("building", "o=fp8")}
INFO {Progress("building", "qkv=fp8")}
INFO {Progress("trying", "o=fp8")}
"""


def fake_command(folder: Path) -> EngineCommand:
    python = str(fake_vllm(folder / "bin") / "python3")
    return EngineCommand(("vllm", "serve", "m"), (), python, "serve", ("m",))


def test_the_last_kernel_that_the_log_names_is_blamed(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    every = [("o=fp8",), ("qkv=fp8",), ("o=fp8", "qkv=fp8"), ("o=fp8,mlp=fp8",)]
    log.write_text(LOG)
    assert _blamed(log, every) == ("trying", [("o=fp8",), ("o=fp8,mlp=fp8",)])
    log.write_text(f"{LOG}INFO {Progress('trying', 'qkv=fp8')}"[:-9])  # cut short
    assert _blamed(log, every) == ("trying", [("o=fp8",), ("o=fp8,mlp=fp8",)])
    log.write_text(f"{LOG}INFO {ALL_LIVE}\nRuntimeError: later\n")
    assert _blamed(log, every)[1] == []
    log.write_text("nothing")
    assert _blamed(log, every)[1] == []
    assert _blamed(log, [("--max-num-seqs 4",)]) == ("", [])
    assert _blamed(tmp_path / "none", every)[1] == []


def test_an_engine_is_given_up_at_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"hang": "Start"}))
    command = fake_command(tmp_path)
    swaps = {"SPARK_PROF_SWAPS": '{"a": ""}'}
    with Engine(command, swaps, tmp_path / "log", silence=math.inf) as engine:
        engine.until = 0.0
        with pytest.raises(CommandError, match="has used its time while starting"):
            engine.start()
        process = engine.process
    assert not process.is_running()


@pytest.mark.slow
def test_what_had_not_started_in_its_time_tells_how_long_a_start_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"hang": "Start"}))
    wanted = TuneSettings(tmp_path, 0.25, (1,), 16, gate_tokens=8)  # of which 5 s are for engines
    with Engines(fake_command(tmp_path), wanted, Journal(tmp_path), print) as found:
        assert found.start_s < 4
        with pytest.raises(TimeUpError):
            list(found.start("search", 0, [BASE], found.left))
        assert found.start_s > 4


def test_the_next_engine_has_imported_vllm_while_this_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "{}")
    wanted = TuneSettings(tmp_path, 60.0, (1,), 16, gate_tokens=8)
    with Engines(fake_command(tmp_path), wanted, Journal(tmp_path), print) as found:
        # What has variables needs a process of its own; a spare that ended is replaced.
        numbers = []
        for combination in (BASE, ("o=fp8",), ("X=1",), BASE, BASE):
            live = found._begin("search", [combination], 600.0)
            numbers.append(int(live.engine.log.stem.partition("-")[2]))
            assert found._spare is not None
            if numbers == [1, 2, 4]:
                found._spare.process.kill()
                found._spare.process.wait()
        assert numbers == [1, 2, 4, 5, 6]
        assert live.engine.alive
        assert found._spare is not None
        assert found._spare.alive
        processes = [live.engine.process, found._spare.process]
    assert not any(process.is_running() for process in processes)


def test_a_host_that_becomes_slower_does_not_choose_between_sides_of_one_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"gains": {"lm_head=fp8": 1.05}, "slower": 1.1}
    monkeypatch.setenv("FAKE_ENGINE", json.dumps(model))
    wanted = TuneSettings(tmp_path, 60.0, (1, 8), 16, gate_tokens=8)
    with Engines(fake_command(tmp_path), wanted, Journal(tmp_path), print) as found:
        alike = [
            ("layer=spark_prof",),
            ("layer=spark_prof", "lm_head=fp8"),
            ("layer=spark_prof", "o=fp8"),
        ]
        assert [each.outcome for each in found.start("search", 0, [BASE], 600.0)] == ["measured"]
        slow, fast, same = found.start("search", 0, alike, 600.0)
    for one, two, three in zip(slow.times, fast.times, same.times, strict=True):
        assert one.own_us
        assert two.own_us == pytest.approx(one.own_us / 1.05, rel=0.01)
        assert three.own_us == pytest.approx(one.own_us, rel=0.01)


def test_what_the_base_says_is_kept_once_and_again_where_another_engine_says_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "{}")
    wanted = TuneSettings(tmp_path, 60.0, (1, 8), 16, gate_tokens=8)
    keep, judge = engines.keep_logits, engines.judge
    kept: list[str] = []
    fails: list[bool] = []

    def counted(engine: Engine, *rest: Any) -> None:
        kept.append(engine.log.name)
        keep(engine, *rest)
        fails.clear()

    def judged(*given: Any, **named: Any) -> Any:
        verdict = judge(*given, **named)
        return replace(verdict, passed=False, reasons=("other tokens",)) if fails else verdict

    monkeypatch.setattr(engines, "keep_logits", counted)
    monkeypatch.setattr(engines, "judge", judged)
    pairs = [Pair(("o=fp8",)), Pair(BASE)]
    with Engines(fake_command(tmp_path), wanted, Journal(tmp_path), print) as found:
        for number, stage in enumerate(STAGES):
            fails += [True] if number == 2 else []
            trials = list(found.together(stage, number, pairs, (), 1.0, 600.0))
            assert [trial.outcome for trial in trials] == ["measured", "measured"]
    assert kept == ["engine-1.log"] * 2 + ["engine-3.log"] * 2


def test_an_engine_of_many_sides_captures_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def options(*arguments: str, free: int | None = 1) -> tuple[str, ...]:
        monkeypatch.setattr(engines, "free_bytes", lambda: free)
        command = EngineCommand((), (), "python", "model", ("m", *arguments))
        wanted = TuneSettings(tmp_path, 1.0, (8, 1), 128)
        return Engines(command, wanted, Journal(tmp_path), print)._few_graphs()

    assert options() == ("--cudagraph-capture-sizes", "1", "8")
    assert options(free=None) == ()
    for decided in ("--enforce-eager", "-O0", "--compilation-config.cudagraph_mode=NONE"):
        assert options(decided) == (), decided
    assert options("--compilation-config", '{"cudagraph_capture_sizes": [4]}') == ()

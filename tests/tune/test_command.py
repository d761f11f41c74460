"""`spark-prof tune` as a command, against an engine whose times are drawn from a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_prof.cli.main import main
from spark_prof.tune import tune_run
from spark_prof.tune.journal import JOURNAL_FILE
from spark_prof.tune.tune_result import TuneResult, read_tune
from tests.ab.engines import Done, run

pytestmark = pytest.mark.slow

TUNE = ("tune", "--minutes", "8", "--batch-sizes", "1,2", "--timeout", "6")
OPTION = "--max-num-seqs 4"


def tune(folder: Path, model: dict[str, Any], *sides: str, more: tuple[str, ...] = ()) -> Done:
    words = [word for side in sides for word in (f"--try={side}",)]
    return run(folder, *words, *more, model={"noise": 0.001, **model}, command=TUNE)


def result_of(done: Done) -> TuneResult:
    assert done.code == 0, done.errors
    return read_tune(done.folder / "result.json")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A winner beside what is slow, wrong, falls back, crashes, hangs and does nothing."""
    model = {
        "gains": {"o=fp8": 1.3, "qkv=fp8": 0.9, "--max-num-seqs": 0.95},
        "wrong_in": ["lm_head=fp8"],
        "falls_back": {"mlp=fp8": "no such layer"},
        "dies_with": ["moe=spark_prof"],
        "hangs_with": ["--no-such"],
    }
    sides = ("o=fp8", "qkv=fp8", "lm_head=fp8", "mlp=fp8", "moe=spark_prof", "router=spark_prof")
    return tune(tmp_path_factory.mktemp("tune"), model, *sides, OPTION, "--no-such")


def test_the_winner_is_the_answer(planted: Done) -> None:
    result = result_of(planted)
    assert (result.answer, result.finished, result.failure) == (("o=fp8",), True, "")
    assert [timed.requests for timed in result.times] == [1, 2]
    for timed in result.times:
        assert timed.gain is not None
        assert timed.gain.value == pytest.approx(1.3, rel=0.01)
    assert result.environment == {"SPARK_PROF_SWAPS": "o=fp8"}
    assert result.serve == "vllm serve m"
    first = " ".join(planted.output.partition("\n\n")[0].split())
    assert first.startswith("o=fp8: 1.30 x per token at batch 1, 1.30 x per token at batch 2; same")


def test_what_is_planted_is_told(planted: Done) -> None:
    told = {each.name: each for each in result_of(planted).tried if each.source}
    verdicts = {name: each.verdict for name, each in told.items()}
    assert verdicts.pop(OPTION) in ("slower", "not told")
    assert verdicts == {
        "o=fp8": "chosen", "qkv=fp8": "slower", "lm_head=fp8": "changes answers",
        "mlp=fp8": "not live", "moe=spark_prof": "failed", "router=spark_prof": "no effect",
        "--no-such": "failed",
    }  # fmt: skip
    assert told["mlp=fp8"].why == "no such layer"
    assert "exit code 9" in told["moe=spark_prof"].why
    assert "silent for 6 s" in told["--no-such"].why
    answers = told["o=fp8"].answers
    assert answers is not None
    assert answers.positions == 256


def test_progress_tells_what_is_tried_won_and_left(planted: Done) -> None:
    assert "trying 6 swaps in one engine" in planted.errors
    assert "best until now o=fp8, 1.3" in planted.errors
    assert "min left" in planted.errors
    assert "confirming o=fp8 in fresh engines" in planted.errors


def test_report_draws_it_in_every_format(
    planted: Done, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("text", "md", "html", "json"):
        argv = ["spark-prof", "report", str(planted.folder), "--format", kind]
        monkeypatch.setattr("sys.argv", argv)
        assert main() == 0
        shown = capsys.readouterr().out
        assert "o=fp8" in shown
        if kind == "json":
            assert json.loads(shown)["kind"] == "spark-prof tune"
            assert json.loads(shown)["answer_line"].startswith("o=fp8: 1.30 x")
        else:
            assert "What was tried" in shown


def test_an_option_wins(tmp_path: Path) -> None:
    done = tune(tmp_path, {"gains": {"--max-num-seqs": 1.5, "o=fp8": 1.1}}, "o=fp8", OPTION)
    result = result_of(done)
    assert result.answer == ("o=fp8", OPTION)
    assert result.serve == f"vllm serve m {OPTION}"
    for timed in result.times:
        assert timed.gain is not None
        assert timed.gain.value == pytest.approx(1.65, rel=0.02)
    together = next(each for each in result.tried if each.name == f"o=fp8 {OPTION}")
    assert together.verdict == "chosen"


def test_nothing_helps(tmp_path: Path) -> None:
    done = tune(tmp_path, {}, "o=fp8", "qkv=fp8")
    assert result_of(done).answer == ()
    assert done.output.startswith("nothing helps, of 2 candidates tried")


@pytest.mark.parametrize("kept", [3, 2, 5])
def test_a_killed_tune_goes_on(tmp_path: Path, kept: int) -> None:
    model = {"gains": {"o=fp8": 1.3, "qkv=fp8": 1.1}}
    done = tune(tmp_path, model, "o=fp8", "qkv=fp8", "mlp=fp8")
    journal = done.folder / JOURNAL_FILE
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:kept]) + lines[kept][:20])
    (done.folder / "result.json").unlink()
    sides = [f"--try={side}" for side in ("o=fp8", "qkv=fp8", "mlp=fp8")]
    again = run(
        tmp_path, *sides, "--resume", str(done.folder),
        model={"noise": 0.001, **model}, command=TUNE,
    )  # fmt: skip
    assert result_of(again).answer == ("o=fp8", "qkv=fp8")
    found = journal.read_text().splitlines(keepends=True)
    assert found[:kept] == lines[:kept]
    trials = [json.loads(line) for line in found[1:]]
    keys = [tuple(map(str, map(t.get, ("stage", "number", "combination", "than")))) for t in trials]
    assert len(keys) == len(set(keys))


def test_what_resume_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tune(tmp_path, {}, "o=fp8")
    before = (done.folder / JOURNAL_FILE).read_bytes()

    def refused(words: str = "serve m") -> str:
        again = run(tmp_path, "--resume", str(done.folder), words=words, command=TUNE)
        assert again.code == 2
        assert (done.folder / JOURNAL_FILE).read_bytes() == before
        return again.errors

    assert "the command vllm serve m, and this is vllm serve other" in refused("serve other")
    with monkeypatch.context() as patch:
        patch.setattr(tune_run, "_version", lambda _: "0.99")
        assert "and this is 0.99" in refused()
    with monkeypatch.context() as patch:
        patch.setattr(tune_run, "_gpu", lambda: "another GPU")
        assert "and this is another GPU" in refused()
    again = run(tmp_path, "--resume", str(tmp_path / "none"), command=TUNE)
    assert (again.code, again.errors.count("\n")) == (2, 1)
    (done.folder / JOURNAL_FILE).write_text('{"kind": 3}\n')
    again = run(tmp_path, "--resume", str(done.folder), command=TUNE)
    assert "is damaged" in again.errors


def test_secrets_are_kept_nowhere(tmp_path: Path) -> None:
    side = "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345"
    done = tune(tmp_path, {"variables": ["HF_TOKEN"], "gains": {"HF_TOKEN": 1.5}}, side)
    assert result_of(done).answer == ("HF_TOKEN=***",)
    held = done.output + done.errors
    held += "".join(p.read_text() for p in done.folder.iterdir() if p.is_file())
    assert "abcdefghijklmnop" not in held


def test_a_base_that_does_not_start_ends_it(tmp_path: Path) -> None:
    done = tune(tmp_path, {"die": "Start"}, "o=fp8")
    assert done.code == 2
    assert "the engine as it is cannot be measured" in done.errors


def test_what_is_refused(tmp_path: Path) -> None:
    for options, line in (
        (("--try=o=nothing",), "there is no kernel nothing"),
        (("--batch-sizes", "0"), "--batch-sizes"),
        (("--minutes", "inf"), "finite"),
        (("--text", "none.txt"), "there is no such file"),
        (("--resume", "x", "-o", "y"), "leave out --out"),
    ):
        done = run(tmp_path / "none", *options, command=("tune",))
        assert done.code == 2, options
        assert line in done.errors


def test_the_list_of_a_recording_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    recording = Path(__file__).parents[1] / "data/h100-qwen3-30b-a3b-nvfp4-graphs"
    for kind in ("text", "json"):
        argv = ["spark-prof", "tune", "--list", "--from", str(recording), "--format", kind]
        argv += ["--all"]
        sides = ["--try=norm=spark_prof", "--try=--speculative-config.method=ngram"]
        sides += ["--skip", "qkv=spark_prof"]
        monkeypatch.setattr("sys.argv", [*argv, *sides, "--", "a/model"])
        assert main() == 0
        shown = capsys.readouterr().out
        assert "norm=spark_prof" in shown
        assert "moe=spark_prof" in shown
        assert "--speculative-config.method=ngram" in shown
        assert "--skip names it" in shown
    assert not list(tmp_path.iterdir())

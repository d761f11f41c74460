"""What earlier results measured on the same GPU and model: told, tried first, measured again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_prof.ab.statistics import Interval
from spark_prof.dashboards.section import Layout
from spark_prof.dashboards.tune_report import render_tune
from spark_prof.tune.candidates import Allowed
from spark_prof.tune.earlier_results import Like, digest_of, earlier_gains, with_earlier
from spark_prof.tune.tune_result import EarlierGain, Tried, TuneResult, read_tune, to_json
from spark_prof.tune.tune_trial import Candidate, CandidateTable
from tests.ab.engines import run
from tests.tune.sample import TUNED

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
GPU = TUNED.gpu
MOE, OUT, OPTION = "moe=spark_prof", "o=spark_prof", "--max-num-seqs 4"


def written(folder: Path, result: TuneResult = TUNED) -> Path:
    folder.mkdir(parents=True)
    (folder / "result.json").write_bytes(to_json(result))
    return folder


def tried(words: str, verdict: str, gain: float | None = None) -> Tried:
    interval = gain and Interval(gain, gain - 0.01, gain + 0.01)
    return Tried(words, "kernels", "", verdict, gain=interval or None)  # type: ignore[arg-type]


def known(words: str, gain: float | None = 1.3, verdict: str = "faster") -> EarlierGain:
    return EarlierGain(words, verdict, gain, "theirs", TUNED.taken, GPU, "0.26.0")


def row(words: str) -> Candidate:
    return Candidate(words, "kernels", "it is there", "", None)


def test_only_results_of_the_same_gpu_and_model_count(tmp_path: Path) -> None:
    written(tmp_path / "same" / "tune")
    written(tmp_path / "other gpu" / "tune", replace(TUNED, gpu="NVIDIA GB10"))
    written(tmp_path / "other model" / "tune", replace(TUNED, model="Qwen/Other"))
    for name, counts in (("same", True), ("other gpu", False), ("other model", False)):
        gains = earlier_gains([tmp_path / name], Like(GPU, "/here/m"), tmp_path / "mine")
        assert bool(gains) is counts
    words = {
        gain.words: gain for gain in earlier_gains([tmp_path / "same"], Like(GPU, "m"), tmp_path)
    }
    assert words["moe=spark_prof --x 1"].gain == pytest.approx((1.61 * 1.34) ** 0.5)
    assert words["o=fp8"].verdict == "changes answers"
    assert "--y 1" not in words  # nothing was told of it


def test_a_models_configuration_tells_it_from_another_of_its_name(tmp_path: Path) -> None:
    digests = []
    for name, layers in (("a/m", 4), ("b/m", 8), ("c/renamed", 4)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        config = {"num_hidden_layers": layers, "_name_or_path": name}
        (folder / "config.json").write_text(json.dumps(config))
        digests.append(digest_of(str(folder)))
    one, other, renamed = digests
    assert one == renamed != other
    assert Like(GPU, "a/m", one).fits(GPU, "c/renamed", renamed)
    assert not Like(GPU, "a/m", one).fits(GPU, "b/m", other)
    assert Like(GPU, "a/m", one).fits(GPU, "b/m")  # of a result without it the name has to do
    assert digest_of("not/here") == ""


def test_the_results_of_ab_and_of_files_alone_count_too() -> None:
    like = Like("NVIDIA H200", "gpt-oss-20b")
    gains = earlier_gains([RESULTS, RESULTS / "ab"], like, Path("mine"))
    assert "layer=spark_prof!,o=spark_prof!,lm_head=spark_prof!" in {gain.words for gain in gains}
    assert "layer=spark_prof,o=spark_prof,lm_head=spark_prof" in {gain.words for gain in gains}
    assert list(gains) == sorted(gains, key=lambda gain: -(gain.gain or 0.0))


def test_the_tune_itself_and_damaged_files_are_none(tmp_path: Path) -> None:
    mine = written(tmp_path / "mine")
    (written(tmp_path / "torn") / "result.json").write_bytes(to_json(TUNED)[:300])
    (tmp_path / "other.json").write_text("[1, 2]")
    assert earlier_gains([tmp_path, tmp_path / "absent"], Like(GPU, "m"), mine) == ()


def test_what_was_faster_comes_first_and_what_was_not_last() -> None:
    table = CandidateTable((row("qkv=spark_prof"), row(OUT), row(MOE)), ())
    earlier = [known(MOE), known(f"{MOE} {OPTION}", 1.2), known("qkv=spark_prof", None, "slower")]
    found = with_earlier(table, earlier, Allowed())
    assert [c.words for c in found.candidates] == [MOE, f"{MOE} {OPTION}", OUT, "qkv=spark_prof"]
    assert [c.known for c in found.candidates] == [True, True, False, False]
    told = f"1.30 x on {GPU} in theirs (2026-11-24), measured again here"
    assert found.candidates[0].condition == f"{told}; it is there"
    assert found.candidates[1].source == "known"
    assert "slower" in found.candidates[-1].condition


def test_nothing_that_can_run_code_is_taken_from_a_result() -> None:
    hostile = ("norm=/tmp/x.py:f", "LD_PRELOAD=/tmp/x.so", "--middleware os.system", "x; rm -rf /")
    found = with_earlier(CandidateTable((), ()), [known(words) for words in hostile], Allowed())
    assert found.candidates == ()
    assert all("only you can type" in left.why for left in found.left_out)


def test_what_changes_the_model_has_to_be_allowed() -> None:
    earlier = [known("lm_head=mxfp4"), known("--kv-cache-dtype fp8")]
    found = with_earlier(CandidateTable((), ()), earlier, Allowed())
    assert found.candidates == ()
    assert [left.why.rpartition("; ")[2].split()[0] for left in found.left_out] == [
        "--allow-requantize", "--allow-kv-dtype",
    ]  # fmt: skip
    assert len(with_earlier(CandidateTable((), ()), earlier, Allowed(True, True)).candidates) == 2


def test_a_tune_starts_from_what_is_known_and_says_so(tmp_path: Path) -> None:
    """Nothing else tells of a candidate here: the fake engine cannot be recorded."""
    from spark_prof.tune.tune_run import _gpu

    theirs = replace(
        TUNED, gpu=_gpu(), answer=("o=fp8",),
        tried=(tried("o=fp8", "chosen", 1.3), tried("qkv=fp8", "slower", 0.9)),
    )  # fmt: skip
    written(tmp_path / "shared" / "one", theirs)
    options = ("--known", str(tmp_path / "shared"), "--allow-requantize", "--try", "mlp=fp8")
    command = ("tune", "--minutes", "8", "--batch-sizes", "1", "--timeout", "12")
    done = run(tmp_path, *options, model={"noise": 0.001, "gains": {"o=fp8": 1.2}}, command=command)
    assert done.code == 0, done.errors
    assert "known of this GPU and model: 1 that were faster and 1 that were not" in done.errors
    result = read_tune(done.folder / "result.json")
    assert result.answer == ("o=fp8",)
    [timed] = result.times
    assert timed.gain
    assert timed.gain.value == pytest.approx(1.2, rel=0.01)  # measured here, and not 1.3
    assert [earlier.where for earlier in result.earlier] == ["one", "one"]
    assert "Where it started" in render_tune(result, Layout("text", 100), whole=False)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--known", str(tmp_path / "none"), command=("tune",))
    assert done.code == 2
    assert "there is no such folder" in done.errors

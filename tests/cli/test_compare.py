"""`spark-prof compare` as a command: formats, exit codes, what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Refuses, Run
from tests.slowed import slowed

COMMAND = "compare"
DATA = Path(__file__).parents[1] / "data"
AWQ, NVFP4, BF16, FP8 = (
    str(DATA / "code-h100" / f"dense-{name}") for name in ("awq", "nvfp4", "bf16", "fp8-token")
)
MODELS = [str(DATA / "models" / name) for name in ("qwen3-8b-nvfp4", "llama-3.1-8b-nvfp4")]
QWEN = DATA / "code-h100" / "qwen3-30b-a3b-nvfp4"
EARLIER = str(DATA / "h100-qwen3-30b-a3b-nvfp4-graphs")


class Done:
    """What one command line did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def compared(run: Run) -> Callable[..., Done]:
    return lambda *words: Done(*run(*words))


def test_json_has_every_comparison(compared) -> None:
    done = compared(AWQ, FP8, BF16, "--format", "json", "--fail-on", "kernels > -50%")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["schema"] == 1
    assert [each["side"] for each in found["comparisons"]] == ["b", "c"]
    assert [each["side"] for each in found["gate"]] == ["b", "c"]
    assert found["gate"][0]["outcome"] == "failed"


@pytest.mark.slow
def test_one_recording_a_side_decides_what_is_large(compared, tmp_path: Path) -> None:
    limits = ("--fail-on", "decode_us.median > 3%")
    for sides in ((EARLIER, str(QWEN)), (str(QWEN), EARLIER)):
        done = compared(*sides, *limits)
        assert done.code == 0
        assert "undecided" in done.err
        assert "one recording a side" in done.err
        assert "compare A1,A2,A3 B1,B2,B3" in done.err
        assert "taken to differ by up to 1.5 %" in " ".join(done.out.split())
        assert compared(*sides, *limits, "--strict").code == 1
    slow = slowed(QWEN, tmp_path / "slow", 0.12, "experts")
    done = compared(EARLIER, str(slow), *limits)
    assert done.code == 1
    [reason] = done.err.splitlines()
    assert reason.startswith("spark-prof: gate failed: decode_us.median > 3%: 4.54 ms on h100")
    assert reason.removeprefix("spark-prof: gate ").split(":")[0] in done.out


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Three recordings of the same thing, and the same 5 % slower, as bundles."""
    folder = tmp_path_factory.mktemp("starts")
    same = [str(folder / f"a{number}") for number in range(3)]
    slow = [str(folder / f"b{number}") for number in range(3)]
    for number, by in enumerate((0.001, 0.004, 0.007)):
        slowed(QWEN, Path(same[number]), by, "experts")
        slowed(QWEN, Path(slow[number]), by + 0.05, "experts")
    return same, slow


@pytest.mark.slow
def test_several_starts_a_side_decide_what_is_small(
    compared, starts: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    same, slow = starts
    limits = ("--fail-on", "decode_us.median > 3%")
    done = compared(",".join(same), ",".join(slow), *limits, "--format", "json")
    assert done.code == 1
    [found] = json.loads(done.out)["comparisons"]
    assert found["assumed_start_share"] is None
    assert found["other"]["recordings"] == slow
    like = found["phases"][0]["like"]
    assert like["us"] == pytest.approx(sum(like["values_b"]) / 3 - sum(like["values_a"]) / 3)
    assert like["share_low"] < 0.05 < like["share_high"]
    assert compared(",".join(same), ",".join(slow[:1]), *limits, "--strict").code == 1
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in slow:
        shutil.copytree(path, folder / Path(path).name)
    text = compared(",".join(same), str(folder), *limits)
    assert text.code == 1
    assert "means of 3 and 3 recordings" in " ".join(text.out.split())


@pytest.mark.slow
def test_a_name_with_a_comma_is_one_recording(
    compared, starts: tuple[list[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, slow = starts
    monkeypatch.chdir(tmp_path)
    for source, name in ((same[0], "a,1"), (same[1], "a"), (slow[0], "1"), (slow[1], "b,2,x")):
        shutil.copytree(source, tmp_path / name)
    done = compared("a,1", "1,b,2,x", "--format", "json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["reference"]["recordings"] == ["a,1"]
    assert found["comparisons"][0]["other"]["recordings"] == ["1", "b,2,x"]


@pytest.mark.slow
def test_what_is_undecided_is_told_and_fails_only_if_asked(compared) -> None:
    limits, sides = ("--fail-on", "prefill_us.median > 3%"), (EARLIER, str(QWEN))
    done = compared(*sides, *limits)
    assert done.code == 0
    assert "gate undecided: prefill_us.median > 3%" in done.err
    assert "8 are needed" in done.err
    assert compared(*sides, *limits, "--strict").code == 1


def test_one_screen_and_all_of_it(compared) -> None:
    short, whole = compared(AWQ, NVFP4), compared(AWQ, NVFP4, "--all")
    assert len(short.out.splitlines()) <= 70 < len(whole.out.splitlines())
    [again] = [line for line in short.out.splitlines() if line.endswith("--all")]
    assert again == f"$ spark-prof compare {AWQ} {NVFP4} --all"
    first, *_ = short.out.split("\n\n")
    assert whole.out.startswith(first)


@pytest.mark.slow
def test_times_per_token_say_of_which_steps_they_are(run: Run) -> None:
    sides = (str(DATA / "compare-h100" / name) for name in ("gpt-graph", "gpt-duty"))
    _, out, _ = run(*sides)
    told = " ".join(out.partition("Decode steps\n")[0].split())
    assert "Time per token: of gpt-graph at batch 8, of gpt-duty at batch 1, where most" in told
    assert "Time per token is that of steps that were only timed" in told


def test_what_cannot_be_compared_is_one_line(refuses: Refuses) -> None:
    for words, said in (
        ((AWQ, "nowhere"), "nowhere"),
        ((MODELS[0], MODELS[1]), f"spark-prof why {MODELS[0]} {MODELS[1]}"),
        ((AWQ, f"{NVFP4}/kernels-rank0.parquet"), f"a part of the recording {NVFP4}"),
        ((AWQ, NVFP4, "--fail-on", "decode_us.medain > 3%"), "median"),
        ((AWQ, NVFP4, "--fail-on", "3 > 2"), "decode_us.median > 3%"),
        ((AWQ, NVFP4, "--fail-on", "decode_us.median > 3%"), "both sides ran eagerly"),
        ((AWQ, NVFP4, "--rank", "7"), "rank"),
        ((AWQ, NVFP4, "-o", "nowhere/out.md"), "does not exist"),
        ((AWQ, NVFP4, "-o", "out.pdf"), "--format"),
        ((AWQ, str(DATA / "ab-h100")), "spark-prof report"),
        ((str(DATA / "ab-cpu" / "result.json"), AWQ), "spark-prof report"),
        ((AWQ, str(DATA / "proton" / "tree.hatchet")), "sums"),
        ((AWQ, str(DATA / "README.md")), "README.md"),
        ((AWQ,), "Missing argument"),
        ((f"{AWQ},{AWQ}", NVFP4), "stands twice"),
        ((f"{AWQ},", NVFP4), "A1,A2,A3"),
        ((AWQ, f"{NVFP4},nowhere"), "nowhere"),
    ):
        refuses(words, said)


def test_a_damaged_recording_leaves_no_output(refuses: Refuses, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(AWQ, damaged)
    table = damaged / "kernels-rank0.parquet"
    table.write_bytes(table.read_bytes()[:1000])
    refuses((NVFP4, damaged, "-o", tmp_path / "out.html"))

"""`spark-prof report --bench`, and `--measured`: which ceilings a recording is held against."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spark_prof.traces.measured import MeasuredMachine, Measurement, keep_measured
from tests.analyzers.planted_steps import Planted, bundle_of
from tests.analyzers.roofline.recorded import GPU, bundle
from tests.cli.conftest import Refuses, Run

COMMAND = "report"
DATA = Path(__file__).parents[1] / "data" / "benchmarks"
BUNDLE = DATA / "vllm-serve-bundle"
SLOW = MeasuredMachine(
    str(GPU["name"]), "2026-11-21T10:00:00+00:00",
    (Measurement("read", 1.5e12, "B/s", 1.4e12, 1.6e12, 20, "a reader"),),
)  # fmt: skip


def test_two_results_beside_a_recording(run: Run) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in BUNDLE.iterdir())
    results = [DATA / "vllm-serve-detailed.json", DATA / "sglang.jsonl"]
    options = [word for path in results for word in ("--bench", path)]
    code, out, errors = run(BUNDLE, "--format", "json", *options)
    assert (code, errors) == (0, "")
    rows = json.loads(out)["clients"]
    assert [(r["basis"], r["verdict"]) for r in rows[:1]] == [("window", "agrees")]
    assert [r["tool"] for r in rows[1:]] == ["sglang bench_serving"] * 2
    assert sorted((path.name, path.stat().st_mtime_ns) for path in BUNDLE.iterdir()) == before


def test_without_the_option_nobody_is_compared(run: Run) -> None:
    assert json.loads(run(BUNDLE, "--format", "json")[1])["clients"] == []


def test_what_is_no_result(refuses: Refuses) -> None:
    for name in ("nosuch.json", "README.md", "vllm-serve-bundle"):
        refuses((BUNDLE, "--bench", DATA / name), name)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "spark-prof" / "ceilings"


def reached(run: Run, *words: object) -> dict[str, Any]:
    code, out, _ = run(*words, "--format", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)["roofline"]["ceilings"]["reached"]
    return found


@pytest.mark.slow
def test_a_named_file_goes_before_what_this_machine_kept(
    run: Run, tmp_path: Path, state: Path
) -> None:
    folder = bundle(tmp_path / "b").path
    assert reached(run, folder)["value"] == 3.03e12
    named = keep_measured(SLOW, tmp_path / "elsewhere")
    assert reached(run, folder, "--measured", named)["value"] == 1.5e12
    assert not state.exists()
    keep_measured(SLOW, state)
    found = reached(run, folder)
    assert found["value"] == 1.5e12
    assert SLOW.taken in found["source"]


def test_a_file_of_ceilings_that_does_not_fit(
    refuses: Refuses, tmp_path: Path, state: Path
) -> None:
    folder = bundle(tmp_path / "b").path
    other = '{"device": "NVIDIA GB10", "taken": "", "measurements": []}'
    for content in ("", "{}", other):
        (tmp_path / "x.json").write_text(content)
        refuses((folder, "--measured", tmp_path / "x.json"), "x.json")


def test_one_layer_beside_those_like_it(run: Run, refuses: Refuses) -> None:
    source = DATA.parent / "architectures" / "gemma3" / "default"
    code, out, _ = run(source, "--layer", 2)
    assert code == 0
    assert out.count("\n") <= 50
    # Layer 2 is the one with full attention: it runs another kernel than the others.
    assert "to the median of the other 3 layers like it" in " ".join(out.split())
    assert re.search(r"self_attn.attn .* only here", out)
    assert re.search(r"self_attn.attn .* not here", out)
    found = json.loads(run(source, "--layer", 2, "--format", "json")[1])
    assert sum(row["us"] for row in found["kernels"]) == pytest.approx(found["us"])
    report = json.loads(run(source, "--format", "json")[1])
    own = [row["decode_us_per_step"] for row in report["layers"] if row["layer"] == 2]
    assert sum(own) == pytest.approx(found["us"])
    refuses((source, "--layer", 99), "has no layer 99; it has 0 to 3")
    refuses((DATA, "--layer", 0), "--layer")


def test_one_batch_size_is_chosen(run: Run, refuses: Refuses, tmp_path: Path) -> None:
    bundle_of(tmp_path, [Planted(1, 500, 1)] * 30 + [Planted(8, 800, 8)] * 40)
    code, out, errors = run(tmp_path / "b", "--batch", "1")
    assert (code, errors) == (0, "")
    assert "An output token takes 500.0 us at batch 1" in out
    refuses((tmp_path / "b", "--batch", "5"), "its steps had 1, 8")


def test_a_card_is_a_picture(run: Run, refuses: Refuses, tmp_path: Path) -> None:
    refuses([BUNDLE, "--card", "card.jpg"], "card.jpg is a picture; let its name end in .png")
    refuses([BUNDLE, "--card", "nowhere/card.png"], "nowhere")
    refuses([DATA.parent / "ab-h100", "--card", "card.png"], "--card need one recording")
    code, out, errors = run(BUNDLE, "--card", "card.png")
    assert (code, out, errors) == (0, "", "spark-prof: wrote card.png\n")
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG\r\n")

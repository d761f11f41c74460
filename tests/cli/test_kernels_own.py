"""`spark-prof kernels template`, and check and bench with a kernel of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.cli.conftest import Refuses, Run

COMMAND = "kernels"
KERNELS = Path(__file__).parents[1] / "swaps" / "kernels" / "faulty.py"


def test_from_the_template_to_the_check(run: Run, tmp_path: Path) -> None:
    code, out, err = run("template", "norm", "-o", "my_norm.py")
    assert (code, out) == (0, "")
    assert "wrote my_norm.py" in err
    code, out, err = run("check", "my_norm.py:build", "--slot", "norm", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert "checking norm=my_norm.py:build" in err
    assert (found["failed"], found["skipped"]) == (0, 0)
    assert found["passed"] == len(found["cases"]) > 30
    assert {case["kernel"] for case in found["cases"]} == {"norm=my_norm.py:build"}


def test_a_template_is_shown_and_never_written_over(run: Run, tmp_path: Path) -> None:
    shown = run("template", "router")[1]
    assert "def build(layer: Layer)" in shown
    (tmp_path / "mine.py").write_text("my work")
    code, out, err = run("template", "router", "-o", "mine.py")
    assert (code, out) == (2, "")
    assert "mine.py exists" in err
    assert (tmp_path / "mine.py").read_text() == "my work"


def test_a_wrong_kernel_fails(run: Run) -> None:
    words = ("check", f"{KERNELS}:doubled_scale", "--slot", "norm")
    code, out, _ = run(*words, "--device", "cpu")
    assert code == 1
    assert "norm=faulty.py:doubled_scale" in out
    assert "elements wrong" in out.replace("\n", " ")
    assert "The first 8 of" in out


def test_a_kernel_that_always_abstains_is_not_checked(run: Run) -> None:
    words = ("check", f"{KERNELS}:swapped_expert", "--slot", "norm")
    code, out, err = run(*words)
    assert code == 2
    assert "model.norm has no experts to swap" in out
    assert "nothing could be checked" in err


def test_bad_input_is_one_line(refuses: Refuses) -> None:
    for words, says in (
        (["template", "attention"], "attention"),
        (["template"], "Missing argument"),
        (["template", "norm", "-o", "nosuch/my.py"], "does not exist"),
        (["template", "norm", "-o", "."], "exists"),
        (["template", "norm", "-o", "x" * 300 + ".py"], "xxx"),
        (["check", "x" * 300 + ".py:build", "--slot", "moe"], "is no file"),
        (["check", "\x1b[2J.py:build", "--slot", "moe"], "is no file"),
        (["check", "my.py:build"], "say what it is for, such as --slot moe"),
        (["check", "--slot", "moe"], "--slot goes with a kernel"),
        (["check", "my.py:build", "--slot", "moe"], "my.py is no file"),
        (["check", "o-w4a16", "--slot", "o"], "there is no kernel o-w4a16"),
        (["check", "my.py:build", "--slot", "kv"], "kv"),
        (["bench", "my.py:build"], "say what it is for"),
        (["bench", "my.py:build", "--slot", "norm"], "told by `spark-prof ab --b norm="),
        (["bench", "my.py:build", "--slot", "moe", "--save"], "leave out --slot"),
        (["bench", "my.py:build", "--slot", "moe", "--tune"], "leave out --slot"),
    ):
        refuses(words, says)


def test_on_a_gpu_a_template_is_timed(run: Run) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    run("template", "o", "-o", "mine.py")
    words = ("--slot", "o", "--model", "Qwen3-30B", "--tokens", "1", "--format", "json")
    code, out, _ = run("bench", "mine.py:build", *words)
    cells = json.loads(out)["cells"]
    assert code == 0
    timed = [
        each for cell in cells for each in cell["results"] if each["contestant"] == cell["subject"]
    ]
    assert any(each["us"] for each in timed)

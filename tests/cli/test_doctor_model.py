"""`spark-prof doctor --model` through the command line: what is asked, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

from spark_prof.cli.doctor import model_ceilings, question_of
from spark_prof.rules.gpus import gpu_called
from spark_prof.traces.measured import MeasuredMachine, Measurement
from tests.checkpoints import MODELS, write_model
from tests.cli.conftest import Refuses, Run

COMMAND = "doctor --model"
MODEL = str(MODELS / "gpt-oss-20b")


def test_what_is_asked_is_answered(run: Run) -> None:
    asked = ("--batch", "4", "--context", "1024", "--drafts", "2", "--tokens-per-step", "2.5")
    code, out, _ = run(MODEL, *asked, "--tensor-parallel", "2", "--format", "json")
    assert code == 0
    question = json.loads(out)["ceilings"]["question"]
    assert question == {
        "batch": 4,
        "context": 1024,
        "scheduled": 3,
        "accepted": 2.5,
        "ranks": 2,
        "kv_bytes": 2.0,
    }


def test_a_gpu_comes_first(run: Run) -> None:
    _, out, _ = run(MODEL, "--gpu", "L40S", "--format", "json")
    gpus = json.loads(out)["ceilings"]["choices"][0]["gpus"]
    assert [gpu["gpu"] for gpu in gpus][:2] == ["L40S", "GB10 (DGX Spark)"]
    assert len(gpus) == len({gpu["gpu"] for gpu in gpus})


def test_nothing_is_said_of_other_gpus_than_the_one_that_is_named(run: Run) -> None:
    for options, columns in (
        (("--gpu", "L40S"), ["L40S"]),
        (("--all",), ["GB10", "RTX 5090", "PRO 6000", "H100", "H200", "B200"]),
    ):
        _, out, _ = run(MODEL, *options, "--format", "md")
        head = next(line for line in out.splitlines() if line.startswith("| Weights |"))
        assert [cell.strip() for cell in head.split("|")][3:-1] == columns


WRONG = {
    ("--batch", "0"): "'--batch': Input should be",
    ("--context", "-1"): "'--context': Input should be",
    ("--tensor-parallel", "99999999999"): "'--tensor-parallel': Input should be",
    ("--tokens-per-step", "2"): "a step yields 1 to 1 tokens",
    ("--drafts", "1", "--tokens-per-step", "nan"): "a step yields 1 to 2 tokens",
    ("--gpu", "toaster"): "known are gb10",
}


def test_what_cannot_be_is_said_in_one_line(refuses: Refuses, tmp_path: Path) -> None:
    for options, line in WRONG.items():
        refuses((MODEL, *options), line)
    for folder in (tmp_path, tmp_path / "nothing", Path(__file__)):
        refuses((folder,))


def test_a_damaged_model_is_reported_as_far_as_it_goes(run: Run, tmp_path: Path) -> None:
    config = {"architectures": ["X\x1b[31m\n"], "vocab_size": -3, "hidden_size": 64}
    write_model(tmp_path, config | {"num_hidden_layers": 2}, {})
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 300)
    for kind in ("text", "md", "html", "json"):
        code, out, _ = run(tmp_path, "--format", kind)
        assert code == 0
        assert "\x1b" not in out
        assert "no safetensors file" in " ".join(out.split())


def test_a_model_that_tells_no_weights_is_refused(refuses: Refuses, tmp_path: Path) -> None:
    write_model(tmp_path, {"architectures": ["X\x1b[31m\n"], "vocab_size": -3}, {})
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 300)
    said = refuses((tmp_path,), "no safetensors file")
    assert "no num_hidden_layers and hidden_size" in said


def test_a_measured_machine_reads_at_its_own_bandwidth() -> None:
    taken = Measurement("read", 200e9, "B/s", 199e9, 201e9, 5, "a sum")
    measured = MeasuredMachine(
        "NVIDIA GB10", "2026-11-21T10:00:00Z", (taken,), compute_capability="12.1"
    )
    question = question_of(batch=1, context=0, drafts=0, accepted=None, ranks=1)
    found = model_ceilings(Path(MODEL), question, gpu_called("h100"), measured)
    here, *others = found.choices[0].gpus
    assert here.gpu == "GB10 (DGX Spark)"
    assert here.read is not None
    assert (here.read.bandwidth, "measured on this machine" in here.read.basis) == (200e9, True)
    assert others[0].gpu == "H100 SXM"
    assert here.gpu not in {gpu.gpu for gpu in others}

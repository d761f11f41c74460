"""`spark-prof tune --list` without a recording: it starts nothing, and needs no vLLM and no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_prof.ab import refusals
from spark_prof.cli.main import main
from spark_prof.errors import CommandError
from spark_prof.tune import tune_run
from spark_prof.tune.candidates import Allowed
from spark_prof.tune.unrecorded import command_to_list, unrecorded_table


@pytest.fixture(autouse=True)
def laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No program, no GPU, and no engine that could be started."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(refusals, "may_have_gpu", lambda: False)
    monkeypatch.setattr(tune_run, "Engines", None)
    monkeypatch.chdir(tmp_path)


def listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["spark-prof", "tune", "--list", *words])
    return main(), capsys.readouterr().out


def test_it_starts_nothing_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    command = ("--", "vllm", "serve", "/models/not-here", "--async-scheduling")
    code, shown = listed(monkeypatch, capsys, *command)
    assert code == 0
    assert shown.splitlines()[0].startswith("29 candidates that may apply; which do")
    assert len(shown.splitlines()) <= 70
    assert "moe=spark_prof" in shown
    code, shown = listed(monkeypatch, capsys, "--format", "json", *command)
    found = json.loads(shown)
    assert found["recorded"] is False
    why = {row["words"]: row["why"] for row in found["left_out"]}
    assert why["--async-scheduling"] == "the command sets it"
    assert "--allow-requantize" in why["lm_head=mxfp4"]
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_here_rules_out_what_it_has_no_layers_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OPTForCausalLM"]}))
    command = command_to_list([str(tmp_path)])
    table = unrecorded_table(command, Allowed(requantize=True))
    why = {row.words: row.why for row in table.left_out}
    assert "no experts" in why["moe=spark_prof"]
    assert "this is OPTForCausalLM" in why["layer=spark_prof"]
    assert {"qkv=spark_prof", "lm_head=mxfp4"} <= {row.words for row in table.candidates}


def test_of_a_command_the_model_and_its_options_are_read() -> None:
    for words, model in (
        (["vllm", "serve", "/models/gone", "--seed", "1"], "/models/gone"),
        (["numactl", "-N", "0", "/opt/bin/vllm", "serve", "a/model"], "a/model"),
        (["/models/gone", "--seed", "1"], "/models/gone"),
    ):
        assert command_to_list(words).model == model
    for nothing in ([], ["true"], ["vllm", "chat"]):
        with pytest.raises(CommandError):
            command_to_list(nothing)

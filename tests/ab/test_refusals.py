"""What is refused before an engine starts: kernels that are not there, models without weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from spark_prof.ab import refusals
from spark_prof.ab.command import EngineCommand
from spark_prof.ab.measuring import MeasuredShape
from spark_prof.ab.refusals import KERNELS_OF_SLOT, refuse_shapes, why_no_model, why_no_side
from spark_prof.ab.sides import parse_side
from spark_prof.errors import CommandError
from spark_prof.kernels.registry import KERNELS
from spark_prof.swaps.swap_settings import SLOTS
from tests.ab.engines import run

MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
DENSE = {"architectures": ["LlamaForCausalLM"]}


def of(model: Path | str, *options: str, prefix: Sequence[str] = ()) -> EngineCommand:
    words = (str(model), *options)
    text = (*prefix, "vllm", "serve", *words)
    return EngineCommand(text, tuple(prefix), "python", "serve", words)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MOE))
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}" + bytes(2000))
    return tmp_path


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "may_have_gpu", lambda: True)


def test_the_slots_of_this_packages_kernels_are_those_of_its_list() -> None:
    assert KERNELS_OF_SLOT.keys() == set(SLOTS)
    assert {slot for slot, names in KERNELS_OF_SLOT.items() if names} == {k.slot for k in KERNELS}


@pytest.mark.parametrize(
    ("side", "why"),
    [
        ("norm=spark_prof", "no kernel for a norm alone; give norm=FILE.py:FUNCTION"),
        ("norm=fp8", "no kernel for a norm alone"),
        ("moe=mxfp4", "experts have many"),
        ("router=fp8", "give router=spark_prof"),
        ("moe=spark_prof", ""),
        ("layer=spark_prof!", ""),
        ("lm_head=mxfp4 --max-num-seqs 4", ""),
        ("moe=marlin", ""),
        ("stock", ""),
    ],
)
def test_a_side_without_a_kernel(model: Path, side: str, why: str) -> None:
    told = why_no_side(of(model), parse_side(side))
    assert why in told
    assert bool(told) is bool(why)


def test_a_side_that_the_model_has_no_layers_for(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(DENSE))
    assert "no experts" in why_no_side(of(model), parse_side("moe=spark_prof"))
    assert not why_no_side(of(model), parse_side("layer=spark_prof!"))
    assert not why_no_side(of(model), parse_side("qkv=spark_prof"))
    assert not why_no_side(of("a/model"), parse_side("moe=spark_prof"))  # not on this host
    (model / "config.json").write_text('{"architectures": ["OPTForCausalLM"]}')
    assert "this is OPTForCausalLM" in why_no_side(of(model), parse_side("layer=spark_prof"))


def test_without_a_gpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "may_have_gpu", lambda: False)
    assert "need an NVIDIA GPU" in why_no_side(of(model), parse_side("moe=spark_prof"))
    assert not why_no_side(of(model), parse_side("moe=marlin"))
    assert why_no_side(of(model, prefix=["env", "X=1"]), parse_side("moe=spark_prof"))
    assert not why_no_side(of(model, prefix=["srun"]), parse_side("moe=spark_prof"))


def test_a_model_that_cannot_be_loaded(model: Path) -> None:
    weights = model / "model.safetensors"
    assert not why_no_model(of(model))
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in why_no_model(of(model))
    assert not why_no_model(of(model, "--load-format", "dummy"))
    weights.unlink()
    assert "no files of weights" in why_no_model(of(model))
    assert "--load-format dummy" in why_no_model(of(model))
    assert not why_no_model(of(model, "--load-format=tensorizer"))
    assert not why_no_model(of(model, prefix=["srun"]))
    (model / "config.json").unlink()
    assert "no config.json" in why_no_model(of(model, "--load-format", "dummy"))
    assert not why_no_model(of("a/model"))


@pytest.mark.parametrize(("command", "option"), [("ab", "--b"), ("tune", "--try")])
def test_nothing_is_started(tmp_path: Path, command: str, option: str) -> None:
    (tmp_path / "empty").mkdir()
    for words, side, gpu, why in (
        ("serve m", "norm=spark_prof", True, "no kernel for a norm"),
        (f"serve {tmp_path}/empty", "o=spark_prof", True, "no config.json"),
        ("serve m", "o=spark_prof", False, "need an NVIDIA GPU"),
    ):
        done = run(tmp_path, option, side, command=(command,), words=words, gpu=gpu)
        assert (done.code, done.folder.exists()) == (2, False)
        assert why in done.errors
        assert done.errors.count("\n") == 1


def test_what_typed_options_forbid_is_not_started(tmp_path: Path) -> None:
    for words, command, refused in (
        ("serve m --max-num-seqs 4", ("tune", "--batch-sizes", "1,8"), "4 requests at most"),
        ("serve m --max-model-len 64", ("tune", "--batch-sizes", "1"), "takes 64"),
        ("serve m --max-num-seqs 4", ("ab", "--batch-sizes", "8,16", "--prefill", "none"), "4 req"),
    ):
        side = ("--b", "o=spark_prof") if command[0] == "ab" else ()
        done = run(tmp_path, *side, command=command, words=words)
        assert (done.code, done.folder.exists()) == (2, False)
        assert refused in done.errors


def test_one_batch_size_that_fits_is_enough_for_ab() -> None:
    command = of("m", "--max-num-seqs", "4")
    shapes = [MeasuredShape("decode", size, 128) for size in (1, 8)]
    refuse_shapes(command, [parse_side("stock")], shapes, refuse_any=False)
    with pytest.raises(CommandError, match="batch size 8"):
        refuse_shapes(command, [parse_side("stock")], shapes, refuse_any=True)
    refuse_shapes(command, [parse_side("--max-num-seqs 8")], shapes, refuse_any=True)

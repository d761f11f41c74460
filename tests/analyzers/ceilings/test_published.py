"""The bytes a token of published checkpoints reads, and what GPUs make of that at most.

The figures are calculated by hand from the models' shapes (shared/research/kernels.md, section 4):
weights only, one token a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from spark_prof.analyzers.ceilings import Ceilings, ceilings_of
from spark_prof.analyzers.ceilings.checkpoint_ceilings import ceiling_at
from spark_prof.rules.gpus import GPUS
from spark_prof.traces.checkpoint import Checkpoint, read_checkpoint
from tests.checkpoints import (
    FORMATS,
    MODELS,
    Linear,
    as_tensors,
    config_of,
    tensors_of,
    write_model,
)
from tests.rows import each_row

NVFP4, COMPRESSED, FP8, FP8_BLOCKS, AWQ = (
    FORMATS[name][1]
    for name in (
        "NVFP4 by ModelOpt",
        "NVFP4 by compressed-tensors",
        "FP8 by ModelOpt",
        "FP8 in blocks",
        "AWQ",
    )
)


def every(linear: Linear, but: tuple[str, ...] = ()) -> Callable[[str], Linear | None]:
    """That format for every matrix of a layer but the router's and those named."""
    kept = ("lm_head", "embed", "router", "visual", *but)
    return lambda name: (
        None if name.endswith(("gate", "_ba")) or any(k in name for k in kept) else linear
    )


def only(linear: Linear, named: tuple[str, ...]) -> Callable[[str], Linear | None]:
    """That format for the matrices whose names contain one of these."""
    return lambda name: linear if any(part in name for part in named) else None


def mixed(name: str) -> Linear | None:
    """Nemotron's experts in NVFP4 and its mixers in FP8."""
    if "experts" in name:
        return NVFP4
    return FP8 if name.endswith(("in_proj", "out_proj")) else None


QKV = ("q_proj", "k_proj", "v_proj", "in_proj_qkvz")
CHECKPOINTS: dict[str, Callable[[str], Linear | None]] = {
    "gpt-oss-120b": lambda name: None,
    "gpt-oss-20b": lambda name: None,
    "qwen3-next-80b-a3b": lambda name: None,
    "qwen3-next-80b-a3b-fp8": every(FP8_BLOCKS),
    "qwen3-next-80b-a3b-nvfp4-experts": only(NVFP4, ("expert",)),
    "qwen3-next-80b-a3b-nvfp4": every(NVFP4, QKV),
    "qwen3-30b-a3b-nvfp4": every(NVFP4),
    "qwen3-vl-235b-a22b-nvfp4": every(COMPRESSED),
    "qwen3-vl-235b-a22b-awq": every(AWQ),
    "llama-3.1-8b-nvfp4": every(NVFP4),
    "qwen3-8b-nvfp4": every(NVFP4),
    "nemotron-3-nano-30b-a3b-mixed": mixed,
}
"""Which format each matrix is stored in; the configuration of the same name says the same."""

AS_IT_IS = "as-shipped"
GIGABYTES = {
    ("gpt-oss-120b", AS_IT_IS): 5.002,
    ("gpt-oss-120b", "attention-head-fp8"): 3.468,
    ("gpt-oss-120b", "attention-head-mxfp4"): 2.748,
    ("gpt-oss-20b", AS_IT_IS): 3.708,
    ("gpt-oss-20b", "dense-mxfp4"): 1.922,
    ("qwen3-next-80b-a3b", AS_IT_IS): 7.125,
    ("qwen3-next-80b-a3b", "but-head-nvfp4"): 2.524,
    ("qwen3-next-80b-a3b", "all-nvfp4"): 2.076,
    ("qwen3-next-80b-a3b-fp8", AS_IT_IS): 3.924,
    ("qwen3-next-80b-a3b-nvfp4-experts", AS_IT_IS): 4.737,
    ("qwen3-next-80b-a3b-nvfp4", AS_IT_IS): 4.16,
    ("qwen3-30b-a3b-nvfp4", AS_IT_IS): 2.176,
    ("qwen3-30b-a3b-nvfp4", "all-nvfp4"): 1.729,
    ("qwen3-vl-235b-a22b-nvfp4", AS_IT_IS): 13.10,
    ("llama-3.1-8b-nvfp4", AS_IT_IS): 4.977,
    ("llama-3.1-8b-nvfp4", "all-nvfp4"): 4.221,
    ("qwen3-8b-nvfp4", AS_IT_IS): 5.152,
    ("nemotron-3-nano-30b-a3b-mixed", AS_IT_IS): 2.92,
}

RATES = {
    # (checkpoint, choice): GB10 at 231 and 273 GB/s, H100 at 3.0 and 3.35, H200 at 4.3 and 4.8 TB/s
    ("gpt-oss-120b", AS_IT_IS): (46.2, 54.6, 600, 670, 860, 960),
    ("gpt-oss-120b", "attention-head-fp8"): (66.6, 78.7, 865, 966, 1240, 1384),
    ("gpt-oss-120b", "attention-head-mxfp4"): (84.0, 99.3, 1092, 1219, 1565, 1746),
    ("qwen3-next-80b-a3b", AS_IT_IS): (32.4, 38.3, 421, 470, 604, 674),
    ("qwen3-next-80b-a3b-fp8", AS_IT_IS): (58.9, 69.6, 765, 854, 1096, 1223),
    ("qwen3-next-80b-a3b-nvfp4-experts", AS_IT_IS): (48.8, 57.6, 633, 707, 908, 1013),
    ("qwen3-next-80b-a3b", "all-nvfp4"): (111, 131, 1445, 1613, 2071, 2312),
    ("qwen3-vl-235b-a22b-nvfp4", AS_IT_IS): (17.6, 20.8, 229, 256, 328, 367),
    ("nemotron-3-nano-30b-a3b-mixed", AS_IT_IS): (79, 93, 1026, 1146, 1470, 1642),
}
BANDWIDTHS = (231e9, 273e9, 3.0e12, 3.35e12, 4.3e12, 4.8e12)


@cache
def from_config(name: str) -> Ceilings:
    return ceilings_of(read_checkpoint(MODELS / name))


@cache
def from_tensors(name: str) -> Ceilings:
    config = config_of(name)
    tensors = tensors_of(config, CHECKPOINTS[name])
    return ceilings_of(Checkpoint(name, config, {}, as_tensors(tensors)))


def choice(found: Ceilings, name: str):
    return next(choice for choice in found.choices if choice.id == name)


@each_row(("key", "gigabytes"), GIGABYTES.items())
def test_bytes_of_a_token_from_the_configuration(key: tuple[str, str], gigabytes: float) -> None:
    found = from_config(key[0])
    assert not found.model.seen
    assert choice(found, key[1]).step.read / 1e9 == pytest.approx(gigabytes, rel=0.01)


@each_row("name", CHECKPOINTS)
def test_configuration_and_tensors_agree(name: str) -> None:
    derived, seen = from_config(name), from_tensors(name)
    assert (seen.model.seen, seen.model.lost, seen.model.unplaced) == (True, (), ())
    assert [c.id for c in derived.choices] == [c.id for c in seen.choices]
    for one, other in zip(derived.choices, seen.choices, strict=True):
        assert one.step.read == pytest.approx(other.step.read, rel=0.005)


@each_row(("key", "rates"), RATES.items())
def test_ceilings(key: tuple[str, str], rates: tuple[float, ...]) -> None:
    step = choice(from_config(key[0]), key[1]).step
    found = [ceiling_at(step, bandwidth, "", GPUS[0]).tokens_per_s for bandwidth in BANDWIDTHS]
    assert found == pytest.approx(list(rates), rel=0.02)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "qwen3-8b-nvfp4"])
def test_headers_of_files_say_the_same(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    folder = write_model(tmp_path, config, tensors_of(config, CHECKPOINTS[name]))
    assert ceilings_of(read_checkpoint(folder)).choices == from_tensors(name).choices


def test_what_drafts_tokens_or_sees_images_is_left_out() -> None:
    drafters = from_tensors("qwen3-next-80b-a3b").left_out
    assert {weights.role for weights in drafters} == {"drafter"}
    encoders = from_tensors("qwen3-vl-235b-a22b-nvfp4").left_out
    assert {weights.role for weights in encoders} == {"encoder"}

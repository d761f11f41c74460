"""The templates pass the check as they are written, and Triton computes what PyTorch does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spark_prof.cli.kernels import Slot, _template_text
from spark_prof.swaps.builder_loading import load_builder
from spark_prof.swaps.swap_settings import SLOTS
from tests.kernels.check.plain import some
from tests.rows import each_row

WORDS = {
    "moe": (" 1 tokens", " 4 tokens", " 9 tokens", " 16 tokens", "the same tensor"),
    "qkv": ("48 x 448",),
    "norm": ("",),
    "router": ("of 32 experts", "sigmoid"),
}
"""The cases that are tried here."""


def test_the_slots_are_those_of_swaps() -> None:
    assert {slot.value for slot in Slot} == set(SLOTS) - {"layer"}


@each_row("slot", list(Slot))
def test_a_template_is_for_a_user_alone(slot: Slot) -> None:
    text = _template_text(slot)
    compile(text, "template.py", "exec")
    assert "noqa" not in text
    assert "type: ignore" not in text
    assert f"--slot {slot.value}" in text or slot.value in ("o", "mlp", "lm_head")


@pytest.mark.slow
@each_row("slot", WORDS)
def test_a_template_passes_the_check(slot: str, tmp_path: Path) -> None:
    path = tmp_path / f"my_{slot}.py"
    path.write_text(_template_text(Slot(slot)), encoding="utf-8")
    builder = load_builder(f"{path}:build")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words = WORDS[slot]
    found = some(slot, builder, lambda label: any(word in label for word in words), device)
    assert [(v.case, v.detail) for v in found if v.status == "failed"] == []
    assert sum(v.status == "passed" for v in found) >= 15


@pytest.mark.slow
def test_triton_computes_what_pytorch_does() -> None:
    """In Triton's interpreter, which cuts where a GPU rounds to bfloat16: 2^-8 an element."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert len([line for line in lines if line.startswith("close ")]) == 9, done.stdout

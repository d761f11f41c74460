"""Conversions to E2M1 and E4M3: in software, and by instructions where a GPU has them."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from spark_prof.kernels.formats import e2m1_encode, e4m3_decode, e4m3_encode, pack_nibbles
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.runtime.launch import launch
from tests.kernels.formats.values import around, every_bfloat16, every_byte
from tests.rows import each_row

_SOURCE = str(Path(__file__).with_name("conversions.cu"))
_MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


def _floats() -> torch.Tensor:
    """Every bf16, what lies between two steps and beside it, and a sweep of all magnitudes."""
    positive = every_byte()[:127].view(torch.float8_e4m3fn).float()
    between = [(a + b) / 2 for a, b in zip(positive.tolist(), positive[1:].tolist(), strict=False)]
    edges = around([*_MIDPOINTS, *between, *positive.tolist(), 6.0, 448.0, 464.0, 480.0, math.inf])
    sweep = torch.arange(-(1 << 31), 1 << 31, 1_000_003).to(torch.int32).view(torch.float32)
    floats = torch.cat([every_bfloat16().float(), edges, sweep])
    return torch.nn.functional.pad(floats, (0, -len(floats) % 8))


def _converted(entry: str, each: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    floats = _floats()
    words = torch.full((len(floats) // each,), -1, dtype=torch.int32, device=device)
    blocks = -(-len(words) // 256)
    code = KernelCode(_SOURCE, entry)
    launch(code, (blocks, 1, 1), 256, [floats.to(device), words, len(words)])
    return floats, words.cpu().view(torch.uint8)


def test_every_bfloat16_and_the_edges_become_e2m1(device: str) -> None:
    floats, codes = _converted("to_e2m1", 8, device)
    assert torch.equal(codes, pack_nibbles(e2m1_encode(floats)))


def test_every_bfloat16_and_the_edges_become_e4m3(device: str) -> None:
    floats, codes = _converted("to_e4m3", 4, device)
    assert torch.equal(codes, e4m3_encode(floats).view(torch.uint8))


def test_e4m3_without_a_sign_is_decoded(device: str) -> None:
    values = torch.zeros(128, device=device)
    launch(KernelCode(_SOURCE, "from_e4m3"), (1, 1, 1), 128, [values])
    expected = e4m3_decode(every_byte()[:128].view(torch.float8_e4m3fn), torch.float32)
    assert torch.equal(values.cpu()[:127], expected[:127])
    assert math.isnan(values[127].item())


def test_floats_all_over_the_range_become_e2m1(device: str) -> None:
    """On a GPU all 2^32 of them; on the CPU each 251st, as all would take half a minute."""
    wrong = torch.zeros(1, dtype=torch.int32, device=device)
    blocks, step = (1024, 1) if device == "cuda" else (1, 251)
    launch(KernelCode(_SOURCE, "wrong_e2m1"), (blocks, 1, 1), 256, [wrong, step])
    assert wrong.item() == 0


@each_row(
    ("value", "code"),
    [(0.0, 0), (-0.0, 8), (0.25, 0), (0.75, 2), (-5.0, 14), (5.1, 7), (math.inf, 7), (-1e38, 15)],
)
def test_a_known_value_has_its_code(value: float, code: int, device: str) -> None:
    values = torch.full((8,), value, device=device)
    words = torch.zeros(1, dtype=torch.int32, device=device)
    launch(KernelCode(_SOURCE, "to_e2m1"), (1, 1, 1), 32, [values, words, 1])
    assert words.view(torch.uint8).tolist() == [code * 17] * 4

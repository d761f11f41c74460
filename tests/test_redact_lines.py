"""A drawn key is told from a name, a number and a hash."""

from __future__ import annotations

import random
import string

from spark_prof.redact_lines import looks_random
from tests.rows import each_row


def test_most_drawn_words_are_found() -> None:
    draw = random.Random(4)
    letters = string.ascii_letters + string.digits
    for length, least in ((16, 0.8), (24, 0.9), (40, 0.9), (64, 0.9)):
        words = ["".join(draw.choices(letters, k=length)) for _ in range(500)]
        assert sum(map(looks_random, words)) / 500 > least, length


NAMES = """
Qwen3MoeForCausalLM FlashInferCutlassNvFp4LinearMethod 9c925d64d72725edaf899c6cb9c377fd0709d9c5
QuarkW4A8Fp8MoEMethod GPU-8d2f2c1e-7a4b-4a0e-9a6f-6f1d2c3b4a59 NVIDIA-Nemotron-3-Nano-30B-A3B-FP8
0x9E3779B97F4A7C15 _ZN5flash22flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsILi128EEE
VLLM_OBJECT_STORAGE_SHM_BUFFER_18f4364e8a414c4cbe3f6710bc4b6b4b 1795243507381114355
"""


@each_row("word", NAMES.split())
def test_names_numbers_and_hashes_are_no_keys(word: str) -> None:
    assert not looks_random(word)

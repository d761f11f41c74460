"""Every row of the tables of names knows its own examples."""

from __future__ import annotations

import re

from spark_prof.rules.backend_order import known_names
from spark_prof.rules.backends import CHOICES, TRACED, choice_of, family_of_kernel
from tests.rows import each_row

EXAMPLES = [(choice, name) for choice in CHOICES for name in choice.examples]


@each_row(("choice", "name"), EXAMPLES)
def test_a_name_is_its_own_rows(choice: object, name: str) -> None:
    assert choice_of(name) is choice


def test_a_kernel_is_of_its_family() -> None:
    families = [family for family, _, _ in TRACED]
    assert [family_of_kernel(example) for _, _, example in TRACED] == families
    for choice in CHOICES:
        assert set(choice.traced) <= set(families), choice.family


def test_an_unknown_name_stays_unknown() -> None:
    for name in ("", "forward_cuda", "SomethingNew", "x" * 10_000):
        assert (choice_of(name), family_of_kernel(name)) == (None, "")


@each_row(
    ("older", "newer"),
    [
        ("cutlass", "CutlassNvFp4LinearKernel"),
        ("flashinfer-cutlass", "FlashInferCutlassNvFp4LinearKernel"),
        ("NvFp4LinearBackend.FLASHINFER_CUTLASS", "FlashInferCutlassNvFp4LinearKernel"),
        ("marlin", "MarlinNvFp4LinearKernel"),
        ("NvFp4LinearBackend.MARLIN", "MarlinNvFp4LinearKernel"),
        ("VLLM_CUTLASS", "CutlassExpertsFp4"),
        ("FLASHINFER_CUTLASS", "FlashInferExperts"),
        ("flashinfer-trtllm", "TrtLlmNvFp4ExpertsModular"),
    ],
)
def test_three_generations_of_names_mean_the_same(older: str, newer: str) -> None:
    assert choice_of(older) is choice_of(newer) is not None


FAMILIES: tuple[tuple[str, str], ...] = (
    (r"^Unquantized", "unquantized"),
    (r"(?i)emulation", "emulation"),
    (r"AITER|ROCM|RDNA|Rocm|ROCm|Rdna|Aiter", "AMD"),
    (r"\bXPU", "Intel"),
    (r"CPU|AMX|Zen|ZEN|Dynamic4bit", "CPU"),
    (r"\bNONE|\bOOT|\bTPU|CUSTOM|NO_ATTENTION", "none of vLLM's"),
    (r"(?i)b12x", "b12x"),
    (r"(?i)marlin", "Marlin"),
    (r"(?i)humming", "Humming"),
    (r"^TRITON_FLASHINFER", "Triton and FlashInfer"),
    (r"^TRITON_FLASH_ATTN", "Triton and FlashAttention"),
    (r"^FLASH_ATTN", "FlashAttention"),
    (r"^FLASHMLA", "FlashMLA"),
    (r"^FLASHINFER(_MLA.*)?$", "FlashInfer"),
    (r"^FLEX", "FlexAttention"),
    (r"^TOKENSPEED", "TokenSpeed"),
    (r"^STEP5|^MINIMAX", "sparse attention"),
    (r"^TURBO|^ULTRA", "narrow KV cache"),
    (r"HPC", "HPC-Ops"),
    (r"(?i)deep_?gemm", "DeepGEMM"),
    (r"MXFP4_(BF16|MXFP8)$", "FlashInfer"),
    (r"(?i)cutedsl", "FlashInfer CuTe DSL"),
    (r"(?i)trtllm", "FlashInfer TensorRT-LLM"),
    (r"(?i)cudnn", "cuDNN"),
    (r"(?i)flashinfer", "FlashInfer CUTLASS"),
    (r"(?i)cutlass", "vLLM CUTLASS"),
    (r"(?i)fbgemm", "FBGEMM"),
    (r"Machete|Exllama|Conch|AllSpark|TritonW4A16|^WNA16MoEBackend.TRITON", "weight-only integers"),
    (r"(?i)torch", "torch"),
    (r"(?i)triton|NATIVE_MXFP8", "Triton"),
)
"""What a name holds, and the begin of its family; first match wins."""

NAMES = [(kind, name) for kind, names in known_names().items() for name in names]


@each_row(("kind", "name"), NAMES)
def test_every_name_of_every_vllm_is_of_its_family(kind: str, name: str) -> None:
    """Members of the enumerations and classes of kernels of 0.24 to 0.33, from their sources."""
    choice = choice_of(name)
    assert choice is not None, (kind, name)
    family = next(found for pattern, found in FAMILIES if re.search(pattern, name))
    assert choice.family.startswith(family), (kind, name, choice.family)


def test_weight_only_kernels_are_told_by_their_format() -> None:
    def activations(name: str) -> str:
        choice = choice_of(name)
        assert choice is not None
        return choice.activations

    assert activations("nvfp4.HUMMING") == activations("mxfp4.TRITON") == "16-bit"
    assert activations("fp8.TRITON") == "same"
    assert activations("HUMMING") == activations("HummingFP8ScaledMMLinearKernel") == ""
    assert activations("B12X_MXFP4_MXFP8") == "mxfp8"
    assert activations("B12X_MXFP4_BF16") == "16-bit"

"""What a kernel does between two matrix products, as far as its name tells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_prof.analyzers.classify.classifier import classify, find_rule, is_gemm


@dataclass(frozen=True)
class Role:
    """Kernels whose name matches; the first that does counts."""

    name: str
    pattern: str
    example: str


ROLES = (
    Role("activation", r"(?i)silu|gelu|swiglu|act_and_mul|activation|relu",
         "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(int)"),
    Role("norm", r"(?i)rms_?norm|layer_?norm|_norm_",
         "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, float, int)"),
)  # fmt: skip
"""What comes before a quantization that vLLM can do in the same kernel."""

PADDING = (
    Role("fill", r"FillFunctor<(?:c10::)?(?:BFloat16|Half|Float8_\w+|float)>",
         "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::BFloat16>,"
         " std::array<char*, 1ul> >(int, at::native::FillFunctor<c10::BFloat16>)"),
    Role("copy", r"direct_copy_kernel_cuda",
         "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
         "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int)"),
)  # fmt: skip
"""What PyTorch's pad launches: it fills the larger tensor and copies the smaller one into it."""

_COMPILED = tuple((role.name, re.compile(role.pattern)) for role in ROLES)
_FILL, _COPY = (re.compile(role.pattern) for role in PADDING)
_LONGEST = 300
"""A fused kernel's name says in its beginning what it does."""


def role_of(name: str) -> str:
    """product, attention, one of ROLES, or empty."""
    if is_gemm(name):
        return "product"
    if classify(name).component == "attention":
        return "attention"
    return next((role for role, known in _COMPILED if known.search(name[:_LONGEST])), "")


def fills_numbers(name: str) -> bool:
    """Whether the kernel writes one floating-point number everywhere."""
    return _FILL.search(name[:_LONGEST]) is not None


def copies_within(name: str) -> bool:
    """Whether the kernel is PyTorch's copy from one tensor to another."""
    return _COPY.search(name[:_LONGEST]) is not None


def fused_conversion(name: str) -> str | None:
    """The conversion that the kernel does beside other work, None for none."""
    rule = find_rule(name)
    return rule.fused_conversion if rule else None


def runs_at_load(name: str) -> bool:
    """Whether kernels of that name run when weights are loaded."""
    rule = find_rule(name)
    return rule is not None and rule.load_time

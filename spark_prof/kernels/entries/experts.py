"""Mixtures of experts: which experts a token takes, and what they make of it."""

from __future__ import annotations

from spark_prof.kernels.entry import Late, ReplacementKernel
from spark_prof.kernels.traffic import MOE, ROUTING

EXPERTS = (
    ReplacementKernel(
        name="router-topk",
        slot="router",
        does="the k experts of largest score of each token, and their weights",
        formats=("bf16", "fp32"),
        tokens=(1, 16),
        shapes="up to 512 experts, k up to 16",
        operation=Late("spark_prof.kernels.routing:route"),
        reference=Late("spark_prof.kernels.check.oracles:routing_oracle"),
        codes=Late("spark_prof.kernels.routing:codes"),
        bytes=ROUTING,
        tolerance="experts equal; weights within some units in the last place of float32",
        check="routing",
    ),
    ReplacementKernel(
        name="moe-w4a16",
        slot="moe",
        does="gate and up, SiLU or SwiGLU, down and the weighted sum, from the router's logits",
        formats=("nvfp4", "mxfp4"),
        tokens=(1, 16),
        shapes="H and I multiples of 16 (MXFP4: of 32)",
        operation=Late("spark_prof.kernels.moe:moe"),
        reference=Late("spark_prof.kernels.check.oracles:moe_oracle"),
        codes=Late("spark_prof.kernels.moe:codes"),
        bytes=MOE,
        tolerance="as of dense layers, the error of what lies between carried through",
        check="moe",
        bench="moe",
        tuned_as="moe",
    ),
)
"""Routing is part of the kernel of the experts too, which begins with it."""

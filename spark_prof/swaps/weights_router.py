"""Reads from a live vLLM layer how its tokens choose their experts."""

from __future__ import annotations

from typing import Any

import torch

from spark_prof.kernels.errors import KernelError
from spark_prof.swaps.layers import RouterLayer

ROUTERS = ("FusedTopKRouter", "FusedTopKBiasRouter", "GroupedTopKRouter", "CPURouter")
"""vLLM's classes whose choice is that of `kernels.routing.route`; `CPURouter` exists since 0.31."""

_REFUSED = (
    ("eplb_state", "its experts are balanced over ranks (EPLB)"),
    ("custom_routing_function", "it routes by a function of the model's own"),
    ("_hash_indices_table", "it routes by a hash of the token"),
    ("bias_vl", "it has another correction for images"),
    ("num_fused_shared_experts", "shared experts are fused into its choice"),
)
"""What a router may have that `route` has not."""


def read_router(name: str, runner: Any) -> RouterLayer:
    """Reads the router of a vLLM `MoERunner`.

    Args:
        name: the runner's path.
        runner: it has the attribute `router`.

    Raises:
        KernelError: it chooses in a way that the kernels do not know.
    """
    router = runner.router
    kind = type(router).__name__
    if kind not in ROUTERS:
        raise KernelError(f"{kind} chooses experts in a way that the kernels do not know")
    for attribute, reason in _REFUSED:
        value = getattr(router, attribute, None)
        if isinstance(value, torch.Tensor) or value:
            raise KernelError(reason)
    if getattr(runner, "_fse_fuse_gate", False):
        raise KernelError("its logits hold those of the shared expert's gate")
    grouped = kind == "GroupedTopKRouter" or getattr(router, "use_grouped_topk", False)
    if grouped and max(router.num_expert_group or 1, router.topk_group or 1) > 1:
        raise KernelError(f"it chooses among {router.num_expert_group} groups of experts")
    if router.scoring_func not in ("softmax", "sigmoid"):
        raise KernelError(f"its scores are {router.scoring_func}, neither softmax nor sigmoids")
    correction, scale = None, 1.0
    # The other two ignore both: a model of theirs scales the result of its experts itself.
    if grouped or kind == "FusedTopKBiasRouter":
        correction = _correction(router)
        scale = float(router.routed_scaling_factor)
    return RouterLayer(
        name=name,
        experts=int(router.global_num_experts),
        top_k=int(router.top_k),
        renormalize=bool(router.renormalize),
        scoring=router.scoring_func,
        correction=correction,
        scale=scale,
    )


def _correction(router: Any) -> torch.Tensor | None:
    if router.e_score_correction_bias is None:
        return None
    if router.scoring_func != "sigmoid":
        raise KernelError("it corrects a softmax; the kernels correct sigmoids only")
    value: torch.Tensor = router.e_score_correction_bias.detach()
    return value.to(torch.float32).contiguous()

"""Small modules with the attributes of vLLM's layers that the swaps use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from spark_prof.swaps.layers import Replacement


class LinearMethod:
    """A quantization method that multiplies with the weight."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


class Linear(torch.nn.Module):
    """As vLLM's linear layers: `forward` asks the quantization method."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(rows, columns), requires_grad=False)
        self.input_size_per_partition, self.output_size_per_partition = columns, rows
        self.quant_method = LinearMethod()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quant_method.apply(self, x, None)


class TinyRMSNorm(torch.nn.Module):
    """As vLLM's custom operators: `forward` calls what was dispatched."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width), requires_grad=False)
        self._forward_method = self.forward_native

    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x if residual is None else x + residual
        y = torch.nn.functional.rms_norm(total, (x.shape[-1],), self.weight, 1e-6)
        return y if residual is None else (y, total)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return self._forward_method(x, residual)


class Router:
    """Chooses the experts of largest logit."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k

    def select_experts(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        topk_indices_dtype: torch.dtype | None = None,
        input_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = router_logits.softmax(-1).topk(self.top_k)
        return weights, experts.to(topk_indices_dtype or torch.int32)


class Experts(torch.nn.Module):
    """Experts of one matrix each."""

    def __init__(self, count: int, features: int, *, monolithic: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.randn(count, features, features), requires_grad=False
        )
        self.quant_method = SimpleNamespace(
            is_monolithic=monolithic, topk_indices_dtype=torch.int64
        )

    def forward_modular(
        self,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        chosen = torch.einsum("mh,mkih->mki", x, self.weight[topk_ids.long()])
        return (chosen * topk_weights[..., None]).sum(1).to(x.dtype)

    def forward_monolithic(
        self, x: torch.Tensor, router_logits: torch.Tensor, input_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        weights, experts = router_logits.softmax(-1).topk(2)
        return self.forward_modular(x, weights, experts)


class Runner(torch.nn.Module):
    """As vLLM's mixture-of-experts runner, with `padding` features behind those of a token."""

    def __init__(self, *, monolithic: bool = False, padding: int = 0) -> None:
        super().__init__()
        self.router = Router(2)
        self.routed_experts = Experts(8, 16 + padding, monolithic=monolithic)
        self.moe_config = SimpleNamespace(
            hidden_dim=16 + padding,
            hidden_dim_unpadded=16,
            num_experts=8,
            experts_per_token=2,
            in_dtype=torch.float32,
            router_logits_dtype=torch.float32,
        )

    @property
    def _quant_method(self) -> Any:
        return self.routed_experts.quant_method

    def forward(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if self._quant_method.is_monolithic:
            return self.routed_experts.forward_monolithic(x=x, router_logits=logits)
        weights, experts = self.router.select_experts(
            hidden_states=x,
            router_logits=logits,
            topk_indices_dtype=self._quant_method.topk_indices_dtype,
        )
        return self.routed_experts.forward_modular(
            x=x, topk_weights=weights, topk_ids=experts, shared_experts=None
        )


class Model(torch.nn.Module):
    """One layer of a transformer without its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Module()])
        layer = self.layers[0]
        layer.input_layernorm = TinyRMSNorm(16)
        layer.self_attn = torch.nn.Module()
        layer.self_attn.qkv_proj = Linear(24, 16)
        layer.self_attn.o_proj = Linear(16, 8)
        layer.mlp = torch.nn.Module()
        layer.mlp.gate = Linear(8, 16)
        layer.mlp.experts = Runner()
        self.lm_head = Linear(40, 16)


def replacing(run: Any, tokens: int = 0) -> Replacement:
    """A replacement that keeps the weights' bits."""
    return Replacement(run, tokens, "kept", bytes=7, line="seven bytes")

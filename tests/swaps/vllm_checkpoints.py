"""Random weights as checkpoints store them, given to vLLM's layers by vLLM's own loaders."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from spark_prof.kernels.formats import (
    FP8_BLOCK,
    Convention,
    Fp8Blocks,
    GlobalScale,
    e4m3_encode,
    interleave_rows,
    quantize_fp8_rows,
    quantize_mxfp4,
    quantize_nvfp4,
)
from spark_prof.swaps.live_weights import StoredAs


def random_weight(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Bfloat16 [rows, columns], larger with larger seeds so that no two scales are the same."""
    numbers = torch.Generator().manual_seed(seed)
    made = torch.randn(rows, columns, generator=numbers, dtype=torch.float32)
    return (made * 1.3**seed).to(torch.bfloat16)


def store(
    row: StoredAs,
    values: torch.Tensor,
    by_row: bool = True,
    blocks: bool = False,
    symmetric: bool = True,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A matrix as a checkpoint has it, by the names of its parameters, and what it stands for."""
    if row.format == "plain":
        return {row.weight: values}, values.double()
    if row.format == "mxfp4":
        mx = quantize_mxfp4(values)
        return {row.weight: mx.packed, row.scale: mx.scales}, mx.decode()
    if row.format == "fp8" and blocks:
        rows, columns = (size // FP8_BLOCK for size in values.shape)
        each = values.float().reshape(rows, FP8_BLOCK, columns, FP8_BLOCK)
        scales = each.abs().amax((1, 3)) / 448
        codes = e4m3_encode((each / scales[:, None, :, None]).reshape(values.shape))
        fp8_blocks = Fp8Blocks(codes, scales)
        return {row.weight: codes, row.fp8_block_scale: scales}, fp8_blocks.decode()
    if row.format == "int4":
        return _store_int4(row, values, symmetric)
    if row.format == "fp8":
        shape = values.shape if by_row else (1, values.numel())
        fp8 = quantize_fp8_rows(values.reshape(shape))
        scales = fp8.scales.unsqueeze(-1) if by_row else fp8.scales.reshape(())
        stored = {row.weight: fp8.values.reshape(values.shape), row.scale: scales}
        return stored, fp8.decode().reshape(values.shape)
    convention: Convention = row.convention
    nv = quantize_nvfp4(values, GlobalScale.of_amax(values.abs().amax(), convention))
    stored = {row.weight: nv.packed, row.scale: nv.scales}
    return stored | {row.global_scale: nv.global_scale.value.reshape(())}, nv.decode()


def _store_int4(
    row: StoredAs, values: torch.Tensor, symmetric: bool
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Groups of 128 columns, packed by vLLM's own functions."""
    quant = import_module("vllm.model_executor.layers.quantization.utils.quant_utils")
    rows, columns = values.shape
    dice = torch.Generator().manual_seed(rows + columns)
    codes = torch.randint(0, 16, (rows, columns), generator=dice, dtype=torch.int32)
    zeros = torch.full((rows, columns // 128), 8, dtype=torch.int32)
    if not symmetric:
        zeros.random_(0, 16, generator=dice)
    scales = values.unflatten(1, (-1, 128)).abs().amax(-1) / 8
    packed, zero_points = quant.pack_cols(codes, 4, rows, columns), zeros
    if row.order == "row":
        zero_points = quant.pack_rows(zeros, 4, rows, columns // 128)
        stored = {row.weight: packed, row.scale: scales}
    elif row.order == "column":
        packed = quant.pack_rows(codes.T.contiguous(), 4, columns, rows)
        stored = {row.weight: packed, row.scale: scales.T.contiguous()}
    else:
        packed = quant.awq_pack(codes.T.contiguous(), 4, columns, rows)
        zero_points = quant.awq_pack(zeros.T.contiguous(), 4, columns // 128, rows)
        stored = {row.weight: packed, row.scale: scales.T.contiguous()}
    if row.zeros and not symmetric:
        stored[row.zeros] = zero_points
    exact = codes.double() - zeros.double().repeat_interleave(128, 1)
    return stored, exact * scales.double().repeat_interleave(128, 1)


def values(weight: Any) -> torch.Tensor:
    """A weight in float64, whatever its format."""
    decoded: torch.Tensor = weight.double() if isinstance(weight, torch.Tensor) else weight.decode()
    return decoded


def load_shards(module: Any, row: StoredAs, shards: dict[Any, torch.Tensor]) -> torch.Tensor:
    """Loads what was quantized apart, by the names of vLLM's shards; returns what it stands for."""
    parameters = dict(module.named_parameters())
    blocks = getattr(module, "weight_block_size", None) is not None
    by_row = row.format == "fp8" and not blocks
    by_row = by_row and parameters[row.scale].shape[0] == module.weight.shape[0]
    symmetric = not row.zeros or row.zeros not in parameters
    decoded = []
    for shard, values in shards.items():
        stored, exact = store(row, values, by_row, blocks, symmetric)
        for name, tensor in stored.items():
            if parameters[name].ndim == 1:
                tensor = tensor.flatten() if by_row else tensor
            which = () if shard is None else (shard,)
            parameters[name].weight_loader(parameters[name], tensor, *which)
        decoded.append(exact)
    return torch.cat(decoded)


def load_experts(
    module: Any, row: StoredAs, hidden: int, inner: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loads experts matrix by matrix; returns gate and up [E, 2I, H], and down [E, H, I].

    Where they have no gate the first is up alone, which vLLM's models load as w1.
    """
    parameters = dict(module.named_parameters())
    blocks = getattr(module, "weight_block_size", None) is not None
    by_row = row.format == "fp8" and not blocks and parameters[f"w2_{row.scale}"].ndim == 3
    gate_up, down = [], []
    for expert in range(module.moe_config.num_experts):
        made = {}
        shapes = {"w1": (inner, hidden), "w2": (hidden, inner), "w3": (inner, hidden)}
        if not module.activation.is_gated:
            del shapes["w3"]
        for number, (shard, shape) in enumerate(shapes.items()):
            # The kernels of vLLM take one global scale for gate and up; here they differ.
            weight = random_weight(*shape, seed=3 * expert + number)
            stored, made[shard] = store(row, weight, by_row, blocks)
            for name, tensor in stored.items():
                half = "w2" if shard == "w2" else "w13"
                parameter = parameters[f"{half}_{name}"]
                parameter.weight_loader(
                    parameter, tensor, f"{half}_{name}", shard_id=shard, expert_id=expert
                )
        down.append(made.pop("w2"))
        gate_up.append(torch.cat(list(made.values())))
    return torch.stack(gate_up), torch.stack(down)


def load_gpt_oss(module: Any, hidden: int, inner: int) -> dict[str, torch.Tensor]:
    """Loads experts as vLLM's gpt-oss does: all at once, the rows of gate and up by turns.

    Returns what they stand for, and their biases, gate before up.
    """
    experts = module.moe_config.num_experts
    both = [random_weight(2 * inner, hidden, seed=number) for number in range(experts)]
    back = [random_weight(hidden, inner, seed=number + 1) for number in range(experts)]
    gate_up, down = quantize_mxfp4(torch.stack(both)), quantize_mxfp4(torch.stack(back))
    gate_up_bias = random_weight(experts, 2 * inner, seed=5)
    down_bias = random_weight(experts, hidden, seed=6)
    for name, tensor in {
        "w13_weight": interleave_rows(gate_up.packed, -2),
        "w13_weight_scale": interleave_rows(gate_up.scales, -2),
        "w13_bias": interleave_rows(gate_up_bias),
        "w2_weight": down.packed,
        "w2_weight_scale": down.scales,
        "w2_bias": down_bias,
    }.items():
        parameter = getattr(module, name).data
        parameter[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return {
        "gate_up": gate_up.decode(),
        "down": down.decode(),
        "gate_up_bias": gate_up_bias,
        "down_bias": down_bias,
    }

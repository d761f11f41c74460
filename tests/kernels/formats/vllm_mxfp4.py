"""Quantizes to MXFP4 with vLLM's Triton kernel, in Triton's interpreter.

A program of its own, since the interpreter is chosen before Triton is imported, and since vLLM
turns Triton off where it has no backend, which the interpreter does not need.

    TRITON_INTERPRET=1 python vllm_mxfp4.py VALUES.pt CODES_AND_SCALES.pt
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
import triton
import triton.language


def main() -> None:
    module = ModuleType("vllm.triton_utils")
    vars(module).update(triton=triton, tl=triton.language, HAS_TRITON=True)
    sys.modules["vllm.triton_utils"] = module
    from vllm.model_executor.layers.quantization.utils.mxfp4_utils import downcast_to_mxfp

    values = torch.load(sys.argv[1], weights_only=True)
    packed, scales, _ = downcast_to_mxfp(values, axis=-1)
    torch.save((packed, scales), sys.argv[2])


if __name__ == "__main__":
    main()

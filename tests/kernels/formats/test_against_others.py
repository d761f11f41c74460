"""gpt-oss's blocks as transformers reads them, and E8M0 as PyTorch's own type has it."""

from __future__ import annotations

import pytest
import torch

from spark_prof.kernels.formats import e8m0_decode, mxfp4_of_blocks

from .values import every_byte, same_bits


def test_gpt_oss_blocks_are_decoded_as_in_transformers() -> None:
    """All bytes with all scales. They read the scale 255 as infinity."""
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4", reason="no transformers")
    blocks = every_byte().reshape(1, 1, 16, 16).expand(1, 256, 16, 16).contiguous()
    scales = every_byte().reshape(1, 256, 1).expand(1, 256, 16).contiguous()
    theirs = mxfp4.convert_moe_packed_tensors(blocks, scales)
    found = mxfp4_of_blocks(blocks, scales).decode(torch.bfloat16)
    assert found.shape == (1, 256, 512)
    theirs = theirs.transpose(1, 2)
    assert same_bits(found[:, :255], theirs[:, :255])
    assert found[:, 255].isnan().all()
    assert theirs[:, 255].isinf().any()


def test_scales_are_decoded_as_pytorch_s_float8_e8m0fnu() -> None:
    assert same_bits(
        e8m0_decode(every_byte(), torch.float32),
        every_byte().view(torch.float8_e8m0fnu).to(torch.float32),
    )

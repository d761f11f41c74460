"""A small drafter for tests/data/small-moe: after each byte the one that followed it most often.

It is a Llama of one layer that adds nothing: a byte's embedding is its own direction, which the
last matrix leads to the byte that follows. So what it drafts is known without running it. It is
trained by counting bytes of Python's standard library, as the model's text is.

Requests for `spark-prof speculate --requests` are written beside it: beginnings of held out texts.

usage: python -m tests.small_moe.drafter FOLDER
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tests.small_moe.model import HELD_OUT

BYTES = 256
HIDDEN = 256
HEADS, KV_HEADS, HEAD = 4, 2, 64
INNER = 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "dtype": "bfloat16",
    "head_dim": HEAD,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": 1024,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": BYTES,
}
_FILES = 60


def counted_followers(texts: Sequence[bytes]) -> list[int]:
    """For each byte the one that follows it most often in the texts; a space after unseen ones."""
    counts = np.zeros((BYTES, BYTES), dtype=np.int64)
    counts[:, ord(" ")] = 1
    for text in texts:
        codes = np.frombuffer(text, dtype=np.uint8)
        np.add.at(counts, (codes[:-1], codes[1:]), 2)
    return [int(follower) for follower in counts.argmax(axis=1)]


def library_texts() -> list[bytes]:
    """The first files of Python's standard library, by name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [path.read_bytes() for path in sorted(folder.glob("*.py"))[:_FILES]]


def write_drafter(folder: Path, followers: Sequence[int]) -> Path:
    """Writes the drafter's checkpoint into a folder, which it returns."""
    folder.mkdir(parents=True, exist_ok=True)
    head = torch.zeros(BYTES, HIDDEN)
    for code, follower in enumerate(followers):
        head[follower, code] = 1.0
    nothing = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    layer = "model.layers.0"
    weights = {
        "model.embed_tokens.weight": torch.eye(BYTES, HIDDEN),
        "lm_head.weight": head,
        "model.norm.weight": torch.ones(HIDDEN),
        f"{layer}.input_layernorm.weight": torch.ones(HIDDEN),
        f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN),
        **{f"{layer}.{name}.weight": torch.zeros(shape) for name, shape in nothing.items()},
    }
    save_file(
        {name: weight.to(torch.bfloat16) for name, weight in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1), encoding="utf-8")
    return folder


if __name__ == "__main__":
    target = write_drafter(Path(sys.argv[1]), counted_followers(library_texts()))
    prompts = (HELD_OUT.read_bytes()[at * 1024 :][:90] for at in range(32))
    lines = (json.dumps({"prompt": list(prompt)}) for prompt in prompts)
    (target / "requests.jsonl").write_text("\n".join(lines), encoding="utf-8")
    print(target)

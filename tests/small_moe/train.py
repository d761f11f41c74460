"""Trains the model of tests/data/small-moe on Python's standard library, on a GPU in minutes.

The text is every ASCII source of the standard library, and every topic of pydoc's documentation
(licence: PSF-2.0). A document is held out where CRC-32 of its name is divisible by 20. Writes
model.safetensors, config.json, a tokenizer whose tokens are bytes, held-out.txt (128 windows of the
held-out documents) and training.json to the folder.

usage: python -m tests.small_moe.train FOLDER [--seconds S] [--batch N] [--length N] [--device D]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sysconfig
import time
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped,unused-ignore]
from typing import Any

import torch
from torch.nn import functional

from tests.small_moe.model import (
    CONFIG,
    LAYERS,
    WINDOW,
    Model,
    bits_per_byte,
    load,
    new_model,
    save,
    windows,
)

_TABLES = {"encodings", "pydoc_data", "site-packages", "dist-packages", "__pycache__"}
_HELD_OUT_OF = 20
_WINDOWS = 128
_RATE = 2e-3
_DECAY = 0.1
_DROPOUT = 0.1
_WARM_UP = 0.02
_EVEN = 0.01


def documents() -> Iterator[tuple[str, bytes]]:
    """Name and text, in an order that does not change."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        text = path.read_bytes()
        if not _TABLES.intersection(parts) and text.isascii():
            yield "/".join(parts), text
    for name, text in sorted(topics.items()):
        if text.isascii():
            yield f"topics/{name}", text.encode()


def texts() -> tuple[bytes, bytes, bytes]:
    """What is trained on, what is held out, and the windows of that."""
    trained, held_out = bytearray(), bytearray()
    for name, text in documents():
        (trained if zlib.crc32(name.encode()) % _HELD_OUT_OF else held_out).extend(text)
    starts = [i * (len(held_out) - WINDOW) // _WINDOWS for i in range(_WINDOWS)]
    chosen = b"".join(held_out[start : start + WINDOW] for start in starts)
    return bytes(trained), bytes(held_out), chosen


def train(
    model: Model, text: torch.Tensor, checked: torch.Tensor, seconds: float, batch: int, length: int
) -> list[dict[str, Any]]:
    """Trains for a time; what it came to, about every fiftieth of it."""
    device = text.device
    for tensor in model.tensors():
        tensor.requires_grad_()
    matrices = [tensor for tensor in model.tensors() if tensor.ndim > 1]
    norms = [tensor for tensor in model.tensors() if tensor.ndim == 1]
    groups = [{"params": matrices, "weight_decay": _DECAY}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=_RATE, betas=(0.9, 0.95), fused=True)
    random = torch.Generator(device).manual_seed(1)
    torch.manual_seed(2)
    log: list[dict[str, Any]] = []
    begin, step, done, told = time.monotonic(), 0, 0.0, 0.0
    while done < 1:
        # By the clock, so that it ends in time on any machine.
        done = min(1.0, (time.monotonic() - begin) / seconds)
        rate = _RATE * min(1.0, done / _WARM_UP + 0.01, 0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        at = torch.randint(len(text) - length, (batch, 1), generator=random, device=device)
        some = text[at + torch.arange(length + 1, device=device)].long()
        lower = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
        with lower:
            logits, uneven = model.trained(some[:, :-1], _DROPOUT)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), some[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        (loss + _EVEN * uneven / LAYERS).backward()
        torch.nn.utils.clip_grad_norm_(list(model.tensors()), 1.0)
        optimizer.step()
        step += 1
        if step == 1 or done >= told:
            told = done + 0.02
            row = {
                "step": step,
                "seconds": round(time.monotonic() - begin, 1),
                "trained": round(loss.item() / math.log(2), 4),
                "held_out": round(bits_per_byte(model, checked), 4),
                "uneven": round(uneven.item() / LAYERS, 3),
            }
            log.append(row)
            print(json.dumps(row), flush=True)
    return log


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=210.0, help="of training")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=CONFIG["max_position_embeddings"])
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    trained, held_out, chosen = texts()
    model = new_model(0, device)
    on_device = torch.frombuffer(bytearray(trained), dtype=torch.uint8).to(device)
    checked = windows(chosen).to(device)
    log = train(model, on_device, checked, options.seconds, options.batch, options.length)
    save(model, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2, sort_keys=True) + "\n")
    (folder / "held-out.txt").write_bytes(chosen)
    stored = load(folder / "model.safetensors")
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "trained_bytes": len(trained),
        "held_out_bytes": len(held_out),
        "parameters": sum(tensor.numel() for tensor in model.tensors()),
        "tokens": log[-1]["step"] * options.batch * options.length,
        "bits_per_byte": round(bits_per_byte(stored, windows(chosen)), 4),
        "log": log,
    }
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts | {"log": None}), flush=True)
    write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer that makes every byte of UTF-8 the token of its value."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Byte-level BPE writes a byte as the Latin-1 character where that can be seen.
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    bytes_ = {chr(byte if byte in seen else next(others)): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=bytes_, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind) + "\n")


if __name__ == "__main__":
    main()

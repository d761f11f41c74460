"""Reads where a program launched each node of its CUDA graphs, as PyTorch 2.15 saves it.

Format: `torch.cuda.graph_annotations.dump_kernel_py_stacks`, a JSON object from a node's number to
the frames that launched it, `FILE:LINE:FUNCTION`, one a line, the innermost first. The number is
that of a trace: the graph's in its upper 32 bits.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from spark_prof.errors import CommandError
from spark_prof.traces.compressed import read_whole

FORMAT = "graph-stacks"

_BEGIN = re.compile(rb'\{\s*"\d{1,19}"\s*:\s*"[^"\n]{1,4000}:\d{1,9}:')
_MOST_BYTES = 256 << 20
_LARGEST = (1 << 63) - 1


def is_graph_stacks(text: bytes) -> bool:
    """Whether a file that begins so holds stacks of graph nodes."""
    return _BEGIN.match(text) is not None


def graph_stacks(path: Path) -> dict[int, list[str]]:
    """The frames of each node, the innermost first."""
    try:
        texts = msgspec.json.decode(read_whole(path, _MOST_BYTES), type=dict[str, str])
        stacks = {int(node): stack.splitlines() for node, stack in texts.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CommandError(f"{path} holds no stacks of graph nodes ({error})") from error
    return {node: frames for node, frames in stacks.items() if 0 < node <= _LARGEST}

"""Places kernels of CUDA graphs by the Python frames that launched their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from spark_prof.importers.modules import names_module
from spark_prof.traces.foreign import Foreign, ForeignProcess
from spark_prof.traces.scopes import NO_SCOPE

Stacks = Mapping[int, Sequence[str]]
"""The frames of each node, the innermost first."""


def with_stacks(foreign: Foreign, stacks: Mapping[int | None, Stacks]) -> Foreign:
    """The trace, with what the stacks of its ranks say of nodes that nothing else places.

    Args:
        stacks: by rank; the entry None serves all ranks.
    """
    processes = [
        _placed(process, mine) if (mine := stacks.get(process.rank, stacks.get(None))) else process
        for process in foreign.processes
    ]
    return replace(foreign, processes=processes)


def _placed(process: ForeignProcess, stacks: Stacks) -> ForeignProcess:
    nodes = set(process.nodes["node"].tolist())
    rows = [
        (node, node, node >> 32, 0, process.scopes.child(NO_SCOPE, frame))
        for node, frames in stacks.items()
        if node not in nodes and (frame := next(filter(names_module, frames), None))
    ]
    added = pd.DataFrame(rows, columns=process.nodes.columns, dtype=np.int64)
    return replace(process, nodes=pd.concat([process.nodes, added], ignore_index=True))

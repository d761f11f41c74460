"""How many kernels a captured CUDA graph has, and how many of them start before the one before."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import torch

try:
    from cuda.bindings import driver
except ImportError:
    driver = None


class KernelNodes(NamedTuple):
    """Kernels of a graph, or of one call of it."""

    waiting: float  # that start when what they depend on has ended
    early: float  # behind a programmatic edge


def kept_graph() -> torch.cuda.CUDAGraph:
    """A graph whose nodes can be asked for once it is captured, where torch can keep them."""
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:  # before torch 2.8
        return torch.cuda.CUDAGraph()


def graph_nodes(graph: torch.cuda.CUDAGraph) -> KernelNodes | None:
    """The kernels of a captured graph; None where torch or the driver's bindings do not tell."""
    # Bindings of another CUDA have calls of another form; a graph that was not kept raises.
    with suppress(Exception):
        raw = driver.CUgraph(graph.raw_cuda_graph())
        nodes = driver.cuGraphGetNodes(raw, driver.cuGraphGetNodes(raw)[2])[1]
        kernel = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        kernels = {int(node) for node in nodes if driver.cuGraphNodeGetType(node)[1] == kernel}
        _, _, targets, edges, _ = driver.cuGraphGetEdges(raw, driver.cuGraphGetEdges(raw)[-1])
        programmatic = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        early = {
            int(node)
            for node, edge in zip(targets, edges, strict=True)
            if int(edge.type) == programmatic
        }
        early &= kernels
        return KernelNodes(len(kernels) - len(early), len(early))
    return None


def of_a_call(
    runs: KernelNodes | None, alone: KernelNodes | None, calls: int
) -> KernelNodes | None:
    """The kernels of one of so many calls, of a graph that also has those of another one."""
    if runs is None or alone is None:
        return None
    counts = [(both - lone) / calls for both, lone in zip(runs, alone, strict=True)]
    return KernelNodes(*counts)

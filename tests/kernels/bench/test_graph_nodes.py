"""How many kernels a graph has: counted on a GPU, and worked out of two graphs anywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from spark_prof.kernels.bench import graph_nodes as module  # noqa: E402
from spark_prof.kernels.bench.graph_nodes import (  # noqa: E402
    KernelNodes,
    graph_nodes,
    kept_graph,
    of_a_call,
)
from spark_prof.kernels.bench.node_price import CHAINS, EMPTY, node_prices  # noqa: E402
from spark_prof.kernels.runtime.launch import launch  # noqa: E402


class Driver:
    """The driver as its bindings of CUDA 13 are: four nodes in a row, of which one is a memset."""

    CUgraph = staticmethod(lambda address: address)
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL=0)
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)

    @staticmethod
    def cuGraphGetNodes(graph: int, most: int = 0) -> tuple[int, list[int], int]:  # noqa: N802
        return 0, [11, 12, 13, 14][:most], 4

    @staticmethod
    def cuGraphNodeGetType(node: int) -> tuple[int, int]:  # noqa: N802
        return 0, int(node == 14) * 2

    @staticmethod
    def cuGraphGetEdges(  # noqa: N802
        graph: int, most: int = 0
    ) -> tuple[int, list[int], list[int], list[SimpleNamespace], int]:
        edges = [SimpleNamespace(type=kind) for kind in (1, 0, 1)]
        return 0, [11, 12, 13][:most], [12, 13, 14][:most], edges[:most], 3


def test_a_programmatic_edge_makes_a_kernel_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "driver", Driver)
    graph = SimpleNamespace(raw_cuda_graph=lambda: 7)
    assert graph_nodes(graph) == KernelNodes(2, 1)


def test_a_graph_that_was_not_kept_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "driver", Driver)
    assert graph_nodes(SimpleNamespace()) is None


def test_a_call_has_what_the_writing_kernel_alone_has_not() -> None:
    assert of_a_call(KernelNodes(20, 40), KernelNodes(20, 0), 20) == KernelNodes(0.0, 2.0)
    assert of_a_call(None, KernelNodes(20, 0), 20) is None
    assert of_a_call(KernelNodes(20, 0), None, 20) is None


def test_a_processor_has_no_nodes() -> None:
    assert list(node_prices(torch.device("cpu"))) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_tells_its_nodes_and_their_price() -> None:
    device, graph = torch.device("cuda"), kept_graph()
    count = torch.zeros(1, dtype=torch.int32, device=device)
    with torch.cuda.graph(graph):
        for _ in range(10):
            launch(EMPTY, (1, 1, 1), 32, (count,), dependent=True)
    assert graph_nodes(graph) == KernelNodes(1, 9)
    prices = {timed.quantity: timed for timed in node_prices(device)}
    assert prices.keys() == {chain.quantity for chain in CHAINS}
    assert all(min(timed.seconds) > 0 for timed in prices.values())

"""A real Ray cluster for the tests that spread work over one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.read_once import few_recordings_open, recordings_read_once

__all__ = ["few_recordings_open", "recordings_read_once"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def cluster() -> Iterator[set[str]]:
    """A real Ray cluster of two nodes with one CPU each; their ids."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    environment = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        found.add_node(num_cpus=1)
        ray.init(address=found.address, runtime_env={"env_vars": environment}, log_to_driver=False)
        found.wait_for_nodes()
        yield {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    finally:
        ray.shutdown()
        found.shutdown()

"""The sides of the process, as each test finds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_prof.swaps import guard
from spark_prof.swaps.swap_settings import SIDES


@pytest.fixture
def sides() -> Iterator[None]:
    """Sides a, b and a's twin, a being active, and nothing said yet; taken back afterwards."""
    names, active = SIDES.names, SIDES.active
    SIDES.names, SIDES.active = ("a", "b", "a2"), "a"
    guard._REPORTED.clear()
    yield
    SIDES.names, SIDES.active = names, active


@pytest.fixture(scope="module")
def vllm_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as the only rank of a vLLM on the CPU; see `vllm_layers`."""
    pytest.importorskip("vllm", minversion="0.31", reason="vLLM 0.31 or newer is not installed")
    from tests.swaps.vllm_layers import vllm_here

    with vllm_here(tmp_path_factory.mktemp("ranks") / "store"):
        yield

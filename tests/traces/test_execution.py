"""What an execution says in words is read back as it was."""

from __future__ import annotations

from itertools import product

from spark_prof.traces.execution import Execution


def test_every_execution_is_read_as_it_was_written() -> None:
    for compiled, (graphs, mode, breakable), runner, asynchronous, eager in product(
        (None, "", "VLLM_COMPILE", "STOCK_TORCH_COMPILE"),
        ((False, "", False), (True, "", False), (True, "FULL", False), (True, "PIECEWISE", True)),
        ("", "V2"),
        (False, True),
        (False, True),
    ):
        execution = Execution(compiled, graphs, mode, breakable, eager, runner, asynchronous)
        assert Execution.read(str(execution)) == execution


def test_what_is_no_execution_is_kept_in_words() -> None:
    found = Execution.read("unknown, model runner V1, $(rm -rf /)")
    assert (found.rest, found.runner) == (("unknown", "$(rm -rf /)"), "V1")
    assert found.compiled is None
    assert not found.launches_alone
    assert str(found) == "unknown, $(rm -rf /), model runner V1"


def test_a_brief_one_is_without_what_is_usual() -> None:
    usual = Execution("VLLM_COMPILE", True, "FULL", runner="V2", asynchronous=True)
    assert usual.brief == "torch.compile, CUDA graphs (FULL)"
    assert Execution(eager=True).launches_alone
    assert not Execution(graphs=True, eager=True).launches_alone

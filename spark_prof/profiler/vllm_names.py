"""What vLLM calls the things that spark-prof reaches into; the only place that knows.

The names were read in the sources of every version in `VERSIONS` and are checked against the
installed one by tests/profiler/test_vllm_names.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OLDEST, NEWEST = (0, 24), (0, 33)
VERSIONS = tuple(f"0.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1))

WORKER = ("vllm.v1.worker.worker_base", "WorkerBase")
"""Every worker's base class; its constructor runs after vLLM has loaded the plugins."""

SCHEDULER = ("vllm.v1.core.sched.scheduler", "Scheduler")
"""The scheduler's class, constructed in the engine core's process."""

ENGINE_CORE = ("vllm.v1.engine.core", "EngineCore")
"""Holds the scheduler and the executor; its `shutdown` ends the workers."""

COMPILED_CLASS = "TorchCompileWithNoGuardsWrapper"
"""Base class of a module that vLLM hands to torch.compile unless it has `do_not_compile`."""

MOE_RUNNER_ENTRY = "_forward_impl"
"""The method that the opaque op moe_forward calls, compiled or not."""


@dataclass(frozen=True)
class InternalCall:
    """A method below a module that runs as Python even inside a compiled model.

    `holder` is the module's attribute that has the method; an empty one is the module itself, if it
    has the attribute `needs`. A layer with a swapped kernel has a `spark_prof_body`. A `whole` call
    counts to its module, whatever the method is called.
    """

    holder: str
    method: str
    whole: bool = False
    needs: str = ""


CALLS = (
    InternalCall("impl", "forward"),
    InternalCall("impl", "forward_mha"),
    InternalCall("impl", "forward_mqa"),
    InternalCall("impl", "do_kv_cache_update"),
    InternalCall("", MOE_RUNNER_ENTRY, needs="routed_experts"),
    # The bodies of the opaque ops of Mamba 1 and 2 and of the gated delta rule.
    InternalCall("", "forward_impl", whole=True, needs="conv1d"),
    InternalCall("", "conv_ssm_forward", whole=True, needs="conv1d"),
    InternalCall("", "_forward_core", whole=True, needs="conv1d"),
    InternalCall("", "_full_forward", whole=True, needs="conv1d"),
    InternalCall("router", "select_experts"),
    InternalCall("routed_experts", "forward_modular"),
    InternalCall("routed_experts", "forward_monolithic"),
    InternalCall("spark_prof_body", "run", whole=True),
)


def is_supported(version: str) -> bool:
    """Whether that vLLM version, such as "0.26.0" or "0.30.1rc1+cpu", is one of `VERSIONS`."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and OLDEST <= (int(match[1]), int(match[2])) <= NEWEST

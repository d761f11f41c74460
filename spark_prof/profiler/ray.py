"""What reaches vLLM's workers that Ray starts, here or on other hosts.

vLLM's current Ray executor gives the environment of its own process to every worker. Its older one
(VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0) and data parallelism through Ray pass on only names that begin
with VLLM_, NCCL_, HF_ and the like, and those that a variable lists (vllm/ray/ray_env.py). All of
them set it in the worker before vLLM loads its plugins, but after Python has started: PYTHONPATH
comes too late there, and spark-prof must be installed on every other host.

Ray ends its workers by SIGKILL, which leaves them no time for their last piece. So it is asked for
before vLLM's engine shuts them down.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_prof.profiler.vllm_names import ENGINE_CORE

if TYPE_CHECKING:
    from spark_prof.profiler.control import Control

logger = logging.getLogger("spark_prof")

CONTROLS: list[Control] = []  # those of this process: one, unless vLLM loads the plugin twice

LISTED = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
"""Names, with commas between, that vLLM copies into its Ray workers (0.24 to 0.32 read)."""

_FLUSH_SECONDS = 60.0
_MARK = "_spark_prof_wrapped"


def with_ray_copies(environment: Mapping[str, str], *names: str) -> dict[str, str]:
    """Adds the names to those that vLLM copies into workers that Ray starts."""
    listed = [name.strip() for name in environment.get(LISTED, "").split(",") if name.strip()]
    listed += [name for name in names if name not in listed]
    return {**environment, LISTED: ",".join(listed)}


def flush_before_shutdown() -> None:
    """Wraps the shutdown of the engine core, where this process has one."""
    module = sys.modules.get(ENGINE_CORE[0])
    owner = getattr(module, ENGINE_CORE[1], None)
    original = getattr(owner, "shutdown", None)
    if original is None or hasattr(original, _MARK):
        return

    def shutdown(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            _flush_workers(getattr(self, "model_executor", None))
        except Exception as error:
            logger.warning("spark-prof may lack the last steps: %s", error)
        return original(self, *arguments, **named)

    setattr(shutdown, _MARK, True)
    setattr(owner, "shutdown", shutdown)  # noqa: B010 - the class is known by name only


def finish_recordings(_worker: Any) -> None:
    """Ends the recordings of this process between two steps; vLLM's executor calls it there."""
    for control in CONTROLS:
        for recording in list(control.recordings):
            recording.finish()


def _flush_workers(executor: Any) -> None:
    recorded = any(control.engines for control in CONTROLS)
    if recorded and getattr(executor, "uses_ray", False):
        executor.collective_rpc(finish_recordings, timeout=_FLUSH_SECONDS)

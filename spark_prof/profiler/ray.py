"""What reaches vLLM's workers that Ray starts, here or on other hosts.

vLLM's current Ray executor gives the environment of its own process to every worker. Its older one
(VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0) and data parallelism through Ray pass on only names that begin
with VLLM_, NCCL_, HF_ and the like, and those that a variable lists (vllm/ray/ray_env.py). All of
them set it in the worker before vLLM loads its plugins, but after Python has started: PYTHONPATH
comes too late there, and spark-prof must be installed on every other host.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LISTED", "with_ray_copies"]

LISTED = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
"""Names, with commas between, that vLLM copies into its Ray workers (0.24 to 0.32 read)."""


def with_ray_copies(environment: Mapping[str, str], *names: str) -> dict[str, str]:
    """Adds the names to those that vLLM copies into workers that Ray starts."""
    listed = [name.strip() for name in environment.get(LISTED, "").split(",") if name.strip()]
    listed += [name for name in names if name not in listed]
    return {**environment, LISTED: ",".join(listed)}

"""Variables that vLLM shall copy into workers that Ray starts."""

from __future__ import annotations

import importlib.util

import pytest

from spark_prof.profiler.ray import LISTED, with_ray_copies


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "SPARK_PROF"),
        ("", "SPARK_PROF"),
        (" A ,B,", "A,B,SPARK_PROF"),
        ("SPARK_PROF", "SPARK_PROF"),
        ("A, SPARK_PROF", "A,SPARK_PROF"),
    ],
)
def test_what_was_listed_stays(before: str | None, after: str) -> None:
    environment = {"X": "1"} | ({} if before is None else {LISTED: before})
    assert with_ray_copies(environment, "SPARK_PROF") == {"X": "1", LISTED: after}


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed here")
def test_vllm_reads_that_list(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.ray.ray_env import get_env_vars_to_copy

    monkeypatch.setenv("SPARK_PROF", "{}")
    monkeypatch.delenv(LISTED, raising=False)
    assert "SPARK_PROF" not in get_env_vars_to_copy()
    monkeypatch.setenv(LISTED, with_ray_copies({}, "SPARK_PROF")[LISTED])
    assert "SPARK_PROF" in get_env_vars_to_copy()

"""How many worlds are tried: a few, always the same, or with SPARK_PROF_WORLDS=nightly many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "quick", derandomize=True, deadline=None, max_examples=6, database=None,
    phases=[Phase.explicit, Phase.generate], suppress_health_check=_SLOW,
)  # fmt: skip
settings.register_profile(
    "nightly", deadline=None, max_examples=200, print_blob=True, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("SPARK_PROF_WORLDS", "quick"))

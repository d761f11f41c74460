"""Results of `spark-prof tune`, as data."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.ab.statistics import Interval
from spark_prof.tune.tune_result import Tried, TuneResult
from spark_prof.tune.tune_trial import Answers, Timed, UntriedCandidate

TIMES = (
    Timed(1, 2000.0, 3220.0, Interval(1.61, 1.6, 1.62), 40),
    Timed(8, 4000.0, 5360.0, Interval(1.34, 1.33, 1.35), 40),
)
SAME = Answers(256, 1.0, "kept", decided=True)
TUNED = TuneResult(
    model="m",
    engine=("vllm", "serve", "m"),
    minutes=8,
    batch_sizes=(1, 8),
    context=128,
    taken="2026-11-24T12:00:00+00:00",
    gpu="NVIDIA H100 80GB HBM3",
    vllm="0.26.0",
    answer=("moe=spark_prof", "--x 1"),
    times=TIMES,
    answers=SAME,
    environment={"SPARK_PROF_SWAPS": "moe=spark_prof"},
    serve="vllm serve m --x 1",
    tried=(
        Tried(
            "moe=spark_prof", "kernels", "slow-experts", "chosen", "", "",
            Interval(1.5, 1.49, 1.51), None, TIMES, SAME,
        ),
        Tried("--y 1", "scheduler", "", "not told", "one start", "", None, 1.02),
        Tried("o=fp8", "kernels", "", "changes answers", "KL is 3 nats"),
    ),
    left_out=(UntriedCandidate("--kv-cache-dtype=fp8", "KV cache", "needs --allow-kv-dtype"),),
    missing=("clocks are not known",),
    finished=True,
)  # fmt: skip
NOTHING = replace(
    TUNED, answer=(), times=(), answers=None, environment={}, serve="",
    line="moe=spark_prof was faster in the search, and not in fresh engines",
    tried=(replace(TUNED.tried[0], verdict="faster"), *TUNED.tried[1:]),
)  # fmt: skip
STOPPED = replace(NOTHING, line="", finished=False, failure="it was stopped")

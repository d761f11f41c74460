"""Why steps of two sides are not comparable, as a clause for a headline, a table and a gate."""

from __future__ import annotations

from spark_prof.analyzers.comparing.comparison import Obstacle
from spark_prof.analyzers.comparing.noise import FEWEST_STEPS
from spark_prof.dashboards.units import counted, shorten

_LONGEST_KERNEL = 60


def why_not(obstacle: Obstacle, names: tuple[str, str], phase: str) -> str:
    """Why steps of two sides are not comparable, in a clause."""
    (a, b), kind = names, obstacle.reason
    ours, theirs = obstacle.a, obstacle.b
    if kind == "models":
        return f"they are different models ({obstacle.what}: {ours} and {theirs})"
    if kind == "parallel":
        return (
            f"both ran eagerly, and a GPU of each does other work ({ours or 'unknown'} and "
            f"{theirs or 'unknown'})"
        )
    if kind == "windows":
        untold = [name for name, window in ((a, ours), (b, theirs)) if not window]
        return f"nothing tells the steps of {' and '.join(untold)}"
    if kind == "work":
        if not obstacle.what:
            return "nothing tells their steps, and no kernel ran on both"
        kernel = shorten(obstacle.what, _LONGEST_KERNEL)
        return f"their windows hold other work ({kernel} ran {ours} and {theirs} times a step)"
    if kind == "batch":
        return f"{a} decodes at batch {ours} and {b} at batch {theirs}"
    if kind == "contexts":
        return (
            f"contexts differ ({ours} and {theirs} tokens), and without attention, which reads "
            "them, no difference is shown"
        )
    if kind == "kernels":
        lacking = [name for name, kernel_count in ((a, ours), (b, theirs)) if not kernel_count]
        return f"both ran eagerly, and no kernel of {' and '.join(lacking)} was recorded"
    kinds = "" if phase == "unknown" else f"{phase} "
    where = ""
    if obstacle.what != "0":
        where = f"at batch {obstacle.what} " if phase == "decode" else f"of {obstacle.what} tokens "
    return (
        f"{where}{a} has {counted(int(ours), f'{kinds}step')} and {b} {int(theirs):,}, and each "
        f"recording needs {FEWEST_STEPS}"
    )

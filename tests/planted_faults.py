"""Plants faults into a copy of the package, one at a time, and asks whether the tests find each.

    python -m tests.planted_faults [NAME_OR_NUMBER ...]

Each row is a text that stands once in a file, what takes its place, and the quick tests that have
to fail then. Exit code 1 where more than two faults survive. A row that no longer fits its file is
a failure of `tests/test_planted_faults.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MOST_SURVIVORS = 2


class Fault(NamedTuple):
    """One fault: in a file of the package, this text becomes that one."""

    file: str
    before: str
    after: str
    tests: str  # paths below tests/, with blanks between


# fmt: off
FAULTS = (
    # The accuracy gate and the statistics of the A/B comparison.
    Fault("ab/accuracy_gate.py", "why, _NEAR_TIE * allowed)", "why, 0.5 * _NEAR_TIE * allowed)",
          "ab"),
    Fault("ab/accuracy_gate.py", "= _WORST_OF_MEAN * kl_mean,", "= 2 * _WORST_OF_MEAN * kl_mean,",
          "ab"),
    Fault("ab/statistics.py", "wide = math.sqrt(quads / (quads - 1)) *", "wide = 0.5 *", "ab"),
    Fault("ab/machine.py", "count > len(quads) / 2}", "count > len(quads) / 4}", "ab"),
    Fault("ab/statistics.py", "tail = NormalDist().cdf(-wide)",
          "tail = NormalDist().cdf(-2 * wide)", "ab"),
    Fault("analyzers/comparing/thresholds.py", "    if low > bound:", "    if high > bound:",
          "analyzers/comparing"),
    # Kernels, their formats, and what is swapped into layers.
    Fault("kernels/dispatch.py", "shapes[min(shapes)]", "shapes[max(shapes)]",
          "kernels/test_dispatch.py"),
    Fault("kernels/dispatch.py", "else [below[-1], above[0]]", "else [below[0], above[0]]",
          "kernels/test_dispatch.py"),
    Fault("kernels/formats.py", "(mantissa >= 0.875)", "(mantissa > 0.875)",
          "kernels/formats"),
    Fault("kernels/formats.py", "amax.isinf() | (power > _INFINITE)", "amax.isinf()",
          "kernels/formats"),
    Fault("swaps/layer_dispatch.py", "experts if kind is None else experts.to(kind)", "experts",
          "swaps"),
    Fault("swaps/layer_dispatch.py", "tokens = x.numel() // x.shape[-1]", "tokens = x.shape[0]",
          "swaps"),
    # The account of a step's time.
    Fault("analyzers/windows.py", "np.maximum.reduce([updated, device_done, begin])",
          "np.maximum(updated, begin)", "analyzers/test_windows.py"),
    Fault("analyzers/windows.py", "np.minimum(finish[:-1], begin[1:])", "finish[:-1]",
          "analyzers/test_windows.py"),
    Fault("analyzers/step_time.py", "        return self.step.median",
          "        return self.step.mean", "analyzers/test_step_time.py"),
    Fault("analyzers/instants.py", "between, idle - between)", "between, idle)",
          "analyzers/test_instants.py"),
    Fault("analyzers/views/waterfall.py", "_above_floor(kernels, ledger.step_us)",
          "_above_floor(kernels, ledger.step.mean)",
          "analyzers/views analyzers/test_step_time.py"),
    Fault("analyzers/step_accounting.py", "float(steps[part].sum())", "float(steps[part].mean())",
          "analyzers"),
    # Who owns a kernel, and how that is known.
    Fault("analyzers/attribution/owners.py", "        for name in exact:",
          "        for name in list(exact)[:1]:",
          "analyzers/attribution analyzers/test_placement.py"),
    Fault("analyzers/attribution/memory_map.py", "(addresses % _ALIGNED == 0)", "True",
          "analyzers/attribution"),
    Fault("analyzers/breakdown.py", "        layer=share(placed & known),",
          "        layer=share(placed),", "analyzers"),
    Fault("analyzers/breakdown.py", "component=share(named & known)", "component=share(named)",
          "analyzers"),
    Fault("importers/repeats.py", "        gemm=gemm | rest,", "        gemm=gemm,", "importers"),
    # Bytes, bounds and how kernels fill the GPU.
    Fault("analyzers/roofline/needs.py", "moved = load.requests * shape.state_bytes",
          "moved = load.tokens * shape.state_bytes", "analyzers/roofline"),
    Fault("analyzers/roofline/needs.py", "moved = 2 * load.tokens * widths.get(",
          "moved = load.tokens * widths.get(", "analyzers/roofline"),
    Fault("analyzers/ceilings/checkpoint_ceilings.py", "/ experts) ** tokens))",
          "/ experts) * tokens))", "analyzers/ceilings"),
    Fault("analyzers/shapes/shape_summary.py", "\"threads\": limits.warps // warps,",
          "\"threads\": limits.warps,", "analyzers/shapes"),
    Fault("analyzers/shapes/shape_summary.py", "waves / math.ceil(waves)",
          "waves / (math.floor(waves) + 1)", "analyzers/shapes"),
    Fault("analyzers/classify/evidence.py", "            if value > 0:",
          "            if value >= 0:", "analyzers/classify"),
    Fault("analyzers/ranks/rank_summary.py", "transfer_ns=end - start - wait,",
          "transfer_ns=end - start,", "analyzers/ranks"),
    # Recording: which steps, which phase, and what a fault may do.
    Fault("profiler/window.py", "_SETTLED = 0.03", "_SETTLED = 0.3", "profiler/test_steady.py"),
    Fault("profiler/window.py", "self.recorded >= self.steps:", "self.recorded > self.steps:",
          "profiler/test_window.py"),
    Fault("profiler/batch.py", "if request in new or cached.is_context_phase(request):",
          "if request in new:", "profiler/test_batch.py"),
    Fault("profiler/fence.py", "            self.disable(hook, error)\n            return None",
          "            self.disable(hook, error)\n            raise", "profiler/test_fence.py"),
    Fault("profiler/ranges.py", "                log.append(leave)",
          "                log.append(enter)", "profiler/test_ranges.py"),
    Fault("profiler/commands.py", "PLUGIN in allowed.split(\",\")", "PLUGIN in allowed",
          "profiler/test_commands.py profiler/test_container.py"),
    Fault("profiler/facts.py", "if bits & bit)", "if bits >= bit)", "profiler/test_measure.py"),
    # What is shown, read and let in.
    Fault("traces/compressed.py", "len(written) >= _MOST_MEMBERS",
          "len(written) >= 10 * _MOST_MEMBERS", "traces/test_archives.py"),
    Fault("traces/merge_ranks.py", "metas[0])", "metas[-1])", "traces/test_merge.py"),
    Fault("secret_rules.py", "Name(r\"(?:^|_)authori[sz]ation\"", "Name(r\"(?:^|_)autorization\"",
          "test_redact.py"),
    Fault("exporters/trace_events.py", "np.divmod(nanoseconds, 1000)",
          "np.divmod(nanoseconds, 1024)", "exporters"),
    Fault("datasets/sql_query.py", "len(statements) != 1 or statements[0].type",
          "statements[0].type", "datasets"),
)
# fmt: on


def caught(fault: Fault, tree: Path) -> bool:
    """Whether the tests of a copied tree fail with the fault in it."""
    path = tree / "spark_prof" / fault.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(fault.before, fault.after), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    tests = [f"tests/{name}" for name in fault.tests.split()]
    try:
        done = subprocess.run(
            [*command, *tests], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True, check=False,
        )  # fmt: skip
    finally:
        path.write_text(whole, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"{fault.file}: pytest ended with {done.returncode}: {done.stdout!r:.500}"
        )
    return done.returncode == 1


def chosen(names: list[str]) -> Iterator[tuple[int, Fault]]:
    """The faults that are asked for by number or by a part of their file's name."""
    for number, fault in enumerate(FAULTS, 1):
        if not names or any(name == str(number) or name in fault.file for name in names):
            yield number, fault


def main(names: list[str]) -> int:
    """Plants the faults; prints each and returns the exit code."""
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        for name in ("spark_prof", "tests", "benchmarks", "demo", "scripts"):
            ignored = shutil.ignore_patterns("__pycache__", "data")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored if name == "tests" else None)
        (tree / "tests" / "data").symlink_to(ROOT / "tests" / "data")
        for name in ("pyproject.toml", "README.md", "docs"):
            (tree / name).symlink_to(ROOT / name)
        for number, fault in chosen(names):
            found = caught(fault, tree)
            survivors += not found
            outcome = "caught" if found else "SURVIVED"
            print(f"{number:2} {outcome} {fault.file}: {fault.after!r:.80}", flush=True)
    print(f"{survivors} survived")
    return int(survivors > MOST_SURVIVORS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Which of vLLM's kernels a component can have on this GPU, beside those that ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_prof.analyzers.ceilings.schemes import SIXTEEN_BIT
from spark_prof.analyzers.model import Report
from spark_prof.rules.backends import Backend, backends_for, choice_of, family_of_kernel
from spark_prof.rules.environment import version_of

OPTIONS: Mapping[str, str] = {
    "experts": "--moe-backend",
    "attention": "--attention-backend",
    **dict.fromkeys(("qkv", "o_proj", "mlp", "shared_experts", "ssm"), "--linear-backend"),
}
"""The option that chooses the kernels of a component."""
_WIDE_CACHE = ("", "auto", "bfloat16", "float16")


class Others(NamedTuple):
    """What may be asked for in place of the kernel that ran."""

    option: str
    stored: str  # the format of the weights; empty where it is not known
    capability: str  # the GPU's; empty where it is not known
    values: tuple[str, ...]  # of the option, those that are known to run; vLLM's favourite first
    known: bool  # whether these are all that are known; else nothing can be said


def other_backends(report: Report, component: str, kernel: str = "") -> Others | None:
    """The backends that are known to run a component's weights here, but for the one that ran.

    None where no option of vLLM chooses the component's kernels.

    Args:
        kernel: the name of its GPU kernel, where the run's own words tell no backend.
    """
    option = OPTIONS.get(component)
    if option is None:
        return None
    capability = report.gpu.compute_capability or ""
    attention = component == "attention"
    stored = _attention(report) if attention else stored_format(report, component)
    try:
        number = float(capability)
    except ValueError:
        return Others(option, stored, "", (), False)
    rows = backends_for(option, stored, number, version_of(report.run.vllm)[:2])
    ran = None if attention else _ran(report, component, kernel, rows)
    named = {m.kernel for m in report.modules if m.component == "attention" and m.kernel}
    if attention and len(named) == 1:
        ran = frozenset(row.value for row in rows if row.implementation in named) or None
    if ran is None:
        return Others(option, stored, capability, (), False)
    values = tuple(dict.fromkeys(row.value for row in rows if row.value not in ran))
    return Others(option, stored, capability, values, True)


def advice(others: Others, first: str = "Try") -> str:
    """What to try, as a sentence; the option with its value stands in it as it is typed."""
    option, stored, capability, values, known = others
    if not known:
        return f"{first} another kernel; which other {option} runs here is not known."
    of = f"{stored} weights" if option != "--attention-backend" else "this attention"
    where = f"{of} on compute capability {capability}"
    if not values:
        return (
            f"No other {option} is known to run {where}: what is left are kernels from outside of "
            "vLLM (spark-prof kernels list)."
        )
    more = f"; after it {', '.join(values[1:])}" if values[1:] else ""
    return f"{first} {option}={values[0]}, which vLLM has for {where}{more}."


def stored_format(report: Report, component: str) -> str:
    """The one format of a component's weights; empty where there are several or none."""
    found = {row.dtype for row in report.streamed if row.component == component}
    [stored] = found if len(found) == 1 else [""]
    return {"bfloat16": "bf16", "float16": "bf16"}.get(stored, stored)


def _attention(report: Report) -> str:
    cache = report.audit.engine.kv_cache if report.audit else ""
    if cache not in _WIDE_CACHE:
        return ""
    return "sinks" if "GptOss" in report.run.model else "plain"


def _ran(
    report: Report, component: str, kernel: str, rows: tuple[Backend, ...]
) -> frozenset[str] | None:
    """The values that may be what ran, or that would not keep the scheme; None if unknown."""
    if not rows:
        return None
    layers = [row for row in (report.audit.rows if report.audit else ()) if row.layer == component]
    families = {w.family for row in layers for w in row.witnesses if w.who == "engine"}
    trace = {family_of_kernel(kernel)} - {""}
    trace |= {w.family for row in layers for w in row.witnesses if w.who == "trace"}
    if not families and not trace:
        return None
    # Where the checkpoint quantizes no activations, kernels with narrow ones compute otherwise.
    narrow = all(row.checkpoint.startswith("W4A4") for row in layers) and bool(layers)
    found = set()
    for row in rows:
        choice = choice_of(row.value)
        if choice is None:
            continue
        same = choice.family in families if families else bool(trace & {*choice.traced})
        a4 = row.stored == "nvfp4" and choice.activations != SIXTEEN_BIT
        if same or (a4 and not narrow):
            found.add(row.value)
    return frozenset(found)

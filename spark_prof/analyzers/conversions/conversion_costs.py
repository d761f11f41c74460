"""All format conversions of a run: attributed to their consumers, fused, of load time, repeated.

After a norm all products read the same input until something else computes with it: q, k and v;
the first products of an MLP; the first ones of experts, shared experts and router. One
quantization serves them all, and others repeat it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from spark_prof.analyzers.breakdown import KernelRow
from spark_prof.analyzers.classify.classifier import Label, find_rule, is_gemm
from spark_prof.analyzers.conversions.conversion_flow import (
    alone,
    flow_of,
    pads,
    role_of,
)
from spark_prof.analyzers.conversions.conversion_rows import (
    AttributedConversion,
    Conversions,
    FusedConversion,
    LayerConversions,
    LoadTimeConversion,
    RepeatedQuantization,
)
from spark_prof.analyzers.instants import OwnedTime
from spark_prof.analyzers.lookup import NameColumn, copies_in, positions
from spark_prof.analyzers.step_accounting import Steps
from spark_prof.analyzers.step_time import step_weights
from spark_prof.vocabulary import COMPONENTS

_NEW_INPUT = frozenset(
    {"norm", "rope", "kv_write", "attention", "ssm", "embedding", "lm_head", "sampler"}
)
"""Kernels of these components end what reads the same input."""


class StepKernel(NamedTuple):
    """One kernel of a step."""

    name: str  # as recorded
    component: str  # where it was placed
    conversion: str | None  # what it converts, None for nothing
    us: float  # how long it ran


def repeated_quantizations(
    kernels: Iterable[StepKernel], step: int
) -> tuple[RepeatedQuantization, ...]:
    """What is quantized several times, the most expensive first."""
    times_by_kernel: dict[tuple[str, tuple[str, ...]], list[list[float]]] = defaultdict(list)
    for calls in _of_one_input(kernels):
        for name, products in calls.items():
            if len(products) > 1:
                key = (name, tuple(dict.fromkeys(component for component, _ in products)))
                times_by_kernel[key].append([took for _, took in products])
    rows = (
        RepeatedQuantization(
            *key,
            calls=sum(map(len, repeats)),
            extra=sum(len(calls) - 1 for calls in repeats),
            extra_us=sum(sum(calls) * (len(calls) - 1) / len(calls) for calls in repeats),
            step=step,
        )
        for key, repeats in times_by_kernel.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.extra_us))


_Calls = dict[str, list[tuple[str, float]]]


def _of_one_input(kernels: Iterable[StepKernel]) -> Iterable[_Calls]:
    """For each input what quantizes it: by kernel, the components of its products and times."""
    read: _Calls = defaultdict(list)  # by component of the product
    activated: set[str] = set()
    pending: list[tuple[str, float]] = []

    def calls() -> _Calls:
        by_kernel: _Calls = defaultdict(list)
        for component, quantized in read.items():
            # Two products of one component may follow each other, unless an activation came later.
            parallel = component == "qkv" or component in activated
            for name, us in quantized if parallel else quantized[:1]:
                by_kernel[name].append((component, us))
        return by_kernel

    for kernel in kernels:
        role = role_of(kernel.name)
        if kernel.conversion == "quantize":
            pending.append((kernel.name, kernel.us))
        elif role == "product":
            if kernel.component not in activated:
                read[kernel.component] += pending
            pending = []
        elif role == "activation":
            activated.add(kernel.component)
            pending = []
        elif kernel.component in _NEW_INPUT and kernel.conversion is None:
            yield calls()
            read, activated, pending = defaultdict(list), set(), []
    yield calls()


LabelOf = Callable[[str], Label]

_LONGEST_STEP = 20_000  # kernels of a step in which repeated quantizations are looked for


def conversions_of(
    placed: pd.DataFrame,
    windows: pd.DataFrame,
    steps: Steps,
    kernels: tuple[KernelRow, ...],
    label_of: LabelOf,
    owned: OwnedTime | None = None,
    *,
    timed: bool = True,
) -> Conversions:
    """What changing formats costs, of everything that ran, placed and with its `stream`.

    Args:
        owned: the part of the steps that each kernel has; without it that is how long it ran.
        timed: whether it is known when kernels ran; else nothing tells what read a result.
    """
    calls = _calls(placed, windows, label_of, owned, timed)
    at_load = _load_time_names(calls, steps.decode)
    loading = (calls["phase"] == "") | calls["name"].isin(at_load)
    named = calls[~loading & ~calls["pads"]]
    attributed = _attributed(named, steps)
    items = tuple(row for row in kernels if row.conversion and row.name not in at_load)
    return Conversions(
        us=sum(row.us for row in items),
        share=sum(row.share for row in items),
        items=items,
        us_per_token=steps.us_per_token(
            float(named.loc[named["phase"] == "decode", "us"].sum()) * steps.decode
        ),
        attributed=attributed,
        layers=_by_layer(named),
        padding=_attributed(calls[~loading & calls["pads"]], steps),
        fused=_fused(kernels),
        load_time=_load_time(calls[loading & ~calls["pads"]]),
        repeated=_repeated(placed, windows, label_of),
    )


def _calls(
    placed: pd.DataFrame,
    windows: pd.DataFrame,
    label_of: LabelOf,
    owned: OwnedTime | None,
    timed: bool,
) -> pd.DataFrame:
    """Conversions that are alike, summed: what they are, ns, calls and us of the typical step."""
    names = [str(name) for name in placed["name"].cat.categories]
    column = NameColumn(placed["name"])
    converts = column.flags(lambda name: bool(label_of(name).conversion))
    copies = copies_in(placed)
    converts &= ~copies
    padding = pads(placed, copies) & ~converts & timed
    flow = flow_of(placed, converts | padding, copies) if timed else alone(converts)
    name = placed["name"].cat.codes.to_numpy()
    component = placed["component"].cat.codes.to_numpy()
    phases = pd.Categorical(windows["phase"])
    # Outside the analyzed steps it is -1, the last code.
    step = positions(windows.index.to_numpy(), placed["step"].to_numpy()[flow.rows])
    of_step = step_weights(windows["phase"], windows if timed else None)
    decoding = np.where(windows["phase"] == "decode", of_step, 0.0)
    rows = pd.DataFrame(
        {
            "name": name[flow.rows],
            "consumer": np.where(flow.consumers >= 0, name[flow.consumers], -1),
            "producer": np.where(flow.producers >= 0, name[flow.producers], -1),
            "component": component[flow.places],
            "layer": placed["layer"].to_numpy()[flow.places],
            "phase": np.append(phases.codes, np.int8(-1))[step],
            "pads": padding[flow.rows],
        }
    )
    conversions = placed.iloc[flow.rows]
    took = (conversions["end_ns"] - conversions["start_ns"]).to_numpy()
    calls = (conversions["part"] == 0).to_numpy(int)
    typical = took * np.append(of_step, 0.0)[step]
    if owned is not None:
        typical = owned.weighted(decoding)[flow.rows]
    figures = rows.assign(ns=took, calls=calls, us=typical / 1e3)
    sums = figures.groupby(list(rows.columns), sort=False).sum()
    sums = sums.reset_index()
    # A code of -1 is none, and the last.
    text = [*names, ""]
    return sums.assign(
        kind=[
            "pad" if pad else label_of(text[code]).conversion or ""
            for code, pad in zip(sums["name"], sums["pads"], strict=True)
        ],
        name=[text[code] for code in sums["name"]],
        consumer=[text[code] for code in sums["consumer"]],
        after=[role_of(text[code]) for code in sums["producer"]],
        component=[COMPONENTS[code] for code in sums["component"]],
        phase=[[*phases.categories, ""][code] for code in sums["phase"]],
    )


def _attributed(calls: pd.DataFrame, steps: Steps) -> tuple[AttributedConversion, ...]:
    keys = ["kind", "name", "component", "consumer", "after"]
    rows = []
    for (kind, name, component, consumer, after), group in calls.groupby(keys, sort=False):
        decode = group[group["phase"] == "decode"]
        in_decode, decode_us = int(decode["calls"].sum()), int(decode["ns"].sum()) / 1e3
        rows.append(
            AttributedConversion(
                kind=str(kind),
                name=str(name),
                component=str(component),
                consumer=str(consumer) or None,
                gemm=is_gemm(str(consumer)),
                after=str(after),
                layers=int(group.loc[group["layer"] >= 0, "layer"].nunique()),
                calls=int(group["calls"].sum()),
                us=int(group["ns"].sum()) / 1e3,
                prefill_us=int(group.loc[group["phase"] == "prefill", "ns"].sum()) / 1e3,
                decode_us=decode_us,
                decode_calls=in_decode,
                calls_per_step=in_decode / steps.decode if steps.decode else 0.0,
                us_per_token=steps.us_per_token(float(decode["us"].sum()) * steps.decode),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.decode_us, -row.us)))


def _by_layer(calls: pd.DataFrame) -> tuple[LayerConversions, ...]:
    in_decode = calls["ns"].where(calls["phase"] == "decode", 0)
    component = pd.Categorical(calls["component"], COMPONENTS)
    groups = calls.assign(decode=in_decode, component=component).groupby(
        ["layer", "component", "kind"], observed=True
    )
    return tuple(
        LayerConversions(
            int(layer) if layer >= 0 else None, component, kind, count, ns / 1e3, decode / 1e3
        )
        for (layer, component, kind), ns, decode, count in (
            groups[["ns", "decode", "calls"]].sum().itertuples(name=None)
        )
    )


def _fused(kernels: tuple[KernelRow, ...]) -> tuple[FusedConversion, ...]:
    return tuple(
        FusedConversion(kind, row.name, row.component, row.calls, row.us, row.decode_us)
        for row in kernels
        if (rule := find_rule(row.name)) and (kind := rule.fused_conversion)
    )


def _load_time_names(calls: pd.DataFrame, decode_steps: int) -> set[str]:
    """Kernels that belong to loading, unless they turn up in decode step after decode step."""
    in_decode = calls[calls["phase"] == "decode"].groupby("name")["calls"].sum()
    often = set(in_decode.index[in_decode >= max(decode_steps / 2, 1)])
    return {
        name for name in set(calls["name"]) - often if (rule := find_rule(name)) and rule.load_time
    }


def _load_time(calls: pd.DataFrame) -> tuple[LoadTimeConversion, ...]:
    outside = calls["calls"].where(calls["phase"] == "", 0)
    groups = calls.assign(outside=outside).groupby(["kind", "name"], sort=False)
    sums = groups[["ns", "calls", "outside"]].sum()
    sums = sums.sort_values("ns", ascending=False, kind="stable")
    return tuple(
        LoadTimeConversion(kind, name, count, ns / 1e3, away)
        for (kind, name), ns, count, away in sums.itertuples(name=None)
    )


def _repeated(
    placed: pd.DataFrame, windows: pd.DataFrame, label_of: LabelOf
) -> tuple[RepeatedQuantization, ...]:
    kinds = {label_of(str(name)).conversion for name in placed["name"].cat.categories}
    decode = windows[windows["phase"] == "decode"]
    if "quantize" not in kinds or decode.empty:
        return ()
    length = decode["finish_ns"] - decode["begin_ns"]
    step = int(length.sort_values(kind="stable").index[len(length) // 2])
    rows = placed.iloc[np.flatnonzero(placed["step"].to_numpy() == step)[:_LONGEST_STEP]]
    rows = rows[~copies_in(rows)]
    took = (rows["end_ns"] - rows["start_ns"]) / 1e3
    return repeated_quantizations(
        (
            StepKernel(name, component, label_of(name).conversion, us)
            for name, component, us in zip(
                rows["name"].astype(str), rows["component"].astype(str), took, strict=True
            )
        ),
        step,
    )

"""Sums of kernel time by component, layer and kernel."""

from __future__ import annotations

import random
from collections import Counter

import pandas as pd

from spark_prof.analyzers.breakdown import kernel_rows, layer_rows, sums_of
from spark_prof.vocabulary import COMPONENTS
from tests.rows import each_row

FAR = 1_800_000_000_000_000_001
PHASES = pd.Series(["prefill", "decode", "decode", "mixed"], index=[3, 4, 5, 6])


def kernels(*rows: tuple[str, str, int, int, float, int]) -> pd.DataFrame:
    """The sums of kernels with name, component, layer, step, us and part."""
    return sums_of(placed(*rows), PHASES)


def placed(*rows: tuple[str, str, int, int, float, int], kind: str = "kernel") -> pd.DataFrame:
    """Kernels as they are placed, far from time 0."""
    frame = pd.DataFrame(rows, columns=["name", "component", "layer", "step", "us", "part"])
    ns = (frame.pop("us").astype(float) * 1000).astype("int64")
    numbers = dict.fromkeys(("layer", "step", "part"), "int32")
    return frame.astype(numbers).assign(
        component=pd.Categorical(frame["component"], categories=COMPONENTS),
        name=frame["name"].astype("category"),
        kind=pd.Categorical([kind] * len(frame)),
        basis=pd.Categorical(["range"] * len(frame), categories=["range"]),
        role=pd.Categorical([""] * len(frame)),
        placed=frame["component"] != "other",
        start_ns=FAR,
        end_ns=FAR + ns,
    )


@each_row("seed", range(8))
def test_sums_against_a_count_of_every_row(seed: int) -> None:
    """The layers of half of them lie too far apart for a table."""
    chosen = random.Random(seed)
    layers = [-1, 0, 1, 40] if seed % 2 else [-1, 5, 2_000_000_000, 1 << 20]
    rows = [
        (f"k{chosen.randrange(3000)}", chosen.choice(COMPONENTS), chosen.choice(layers),
         chosen.choice([3, 4, 6]), float(chosen.randrange(9)), chosen.randrange(2))
        for _ in range(4000)
    ]  # fmt: skip
    wanted: Counter[tuple[int | None, str]] = Counter()
    for _, component, layer, _, us, _ in rows:
        wanted[layer if layer >= 0 else None, component] += round(us)
    found = kernels(*rows)
    assert {(row.layer, row.component): row.us for row in layer_rows(found)} == wanted
    assert int(found["calls"].sum()) == sum(row[-1] == 0 for row in rows)
    calls = Counter((name, component) for name, component, _, _, _, part in rows if part == 0)
    assert {(r.name, r.component): r.calls for r in kernel_rows(found) if r.calls} == calls


def test_roles_of_a_kernel_that_with_the_most_time_first() -> None:
    rows = [("gemm", "qkv", layer, 4, us, 0) for layer in (0, 1) for us in (1.0, 5.0, 2.0)]
    frame = placed(*rows).assign(role=pd.Categorical(["k", "q", ""] * 2))
    sums = sums_of(frame, PHASES)
    assert sums.groupby("role", observed=True)["ns"].sum().to_dict() == {
        "": 4000, "k": 2000, "q": 10000,
    }  # fmt: skip
    (row,) = kernel_rows(sums)
    assert (row.us, row.calls, row.roles) == (16.0, 6, ("q", "k"))


def test_an_encoder_and_a_drafter_have_rows_of_their_own() -> None:
    found = kernels(
        ("e", "attention", -1, 4, 7.0, 0), ("d", "attention", -1, 4, 2.0, 0),
        ("own", "attention", 0, 4, 1.0, 0), ("out", "attention", -1, 4, 4.0, 0),
    )  # fmt: skip
    roles = {"e": "encoder.self_attn.qkv_proj", "d": "drafter.self_attn.o_proj",
             "own": "self_attn.attn", "out": "norm"}  # fmt: skip
    found = found.assign(role=found["name"].astype(str).map(roles))
    rows = {(row.layer, row.component, row.part): row.us for row in layer_rows(found)}
    assert rows == {
        (None, "attention", ""): 4, (None, "attention", "drafter"): 2,
        (None, "attention", "encoder"): 7, (0, "attention", ""): 1,
    }  # fmt: skip

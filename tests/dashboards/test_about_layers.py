"""Which layers are held against one another, and which row is told to be an outlier."""

from __future__ import annotations

from dataclasses import replace

from spark_prof.analyzers.breakdown import LayerRow
from spark_prof.dashboards import about_layers

from .sample import SAMPLES


def marks(*layers: dict[str, float]) -> list[str]:
    """The last column of layers with those components and times."""
    rows = [
        LayerRow(n, name, us, 1) for n, parts in enumerate(layers) for name, us in parts.items()
    ]
    return [
        row[-1]
        for row in about_layers.layers(
            replace(SAMPLES["mixture_of_experts"], layers=tuple(rows))
        ).rows
    ]


def test_layers_of_one_kind_have_one_median() -> None:
    layer = {"attention": 10.0, "mlp": 90.0}
    assert marks(layer, layer, layer, {"attention": 30.0, "mlp": 90.0}) == [
        "median", "+0.0 %", "+0.0 %", "+20.0 % (outlier)",
    ]  # fmt: skip


def test_layers_of_another_kind_are_no_outliers() -> None:
    """A hybrid's mixers and experts by turns, and one layer of a third kind."""
    mixer, experts = {"norm": 1.0, "ssm": 20.0}, {"norm": 1.0, "experts": 300.0}
    slow = {"norm": 1.0, "experts": 360.0}
    # The compiler fused the first layer's norm with the embedding.
    found = marks({"ssm": 20.0}, experts, mixer, experts, mixer, slow, {"attention": 5.0})
    assert found[1] == "median"
    assert found[5] == "+19.9 % (outlier)"
    assert found[6] == "-"
    assert [found[0], found[2], found[4]] == ["-4.8 %", "median", "+0.0 %"]

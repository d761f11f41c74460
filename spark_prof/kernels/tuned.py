"""Configurations for weights that are packed: what was measured of them on the GPU they are on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from spark_prof.kernels import dense
from spark_prof.kernels import moe as experts_
from spark_prof.kernels.dispatch import choose
from spark_prof.kernels.errors import KernelError
from spark_prof.kernels.experts import PackedExperts
from spark_prof.kernels.operands import architecture, multiprocessors
from spark_prof.kernels.pack import PackedLinear

Config = TypeVar("Config", dense.LinearConfig, experts_.MoeConfig)


_UNIT = 128
"""Columns that a warp takes at a time: there is no more to share out."""


@dataclass(frozen=True)
class Chosen(Generic[Config]):
    """What to run.

    Attributes:
        config: for `linear` or `moe`; None where another kernel is as fast or nothing is known.
    """

    config: Config | None
    why: str


def choose_linear(
    weight: PackedLinear, tokens: int, *, insist: bool = False
) -> Chosen[dense.LinearConfig]:
    """Chooses between `linear` and whatever it would replace.

    Args:
        insist: run it where nobody measured it (`dispatch.choose`).

    Raises:
        KernelError: a file of measurements is damaged.
    """
    rows, columns = weight.rows, weight.columns
    choice = choose(
        "dense", weight.format, rows, columns, tokens, architecture(weight.weights.device),
        insist=insist,
    )  # fmt: skip
    if choice.config is None:
        return Chosen(None, choice.why)
    config = _config(dense.LinearConfig, choice.config)
    if config is None or not _fits(config, columns):
        config = dense.default_config(rows, columns, tokens, weight.format)
    return Chosen(config, choice.why)


def choose_moe(
    experts: PackedExperts, top_k: int, tokens: int, *, insist: bool = False
) -> Chosen[experts_.MoeConfig]:
    """Chooses between `moe` and whatever it would replace; otherwise as `choose_linear`.

    Args:
        insist: run it where nobody measured it.
    """
    hidden, inner = experts.hidden, experts.intermediate
    device = experts.gate_up.weights.device
    choice = choose(
        "moe", experts.gate_up.format, 2 * inner, hidden, tokens,
        architecture(device),
        experts=experts.count, top_k=top_k, insist=insist,
    )  # fmt: skip
    if choice.config is None:
        return Chosen(None, choice.why)
    config = _config(experts_.MoeConfig, choice.config)
    if config is None or not _fits(config, hidden):
        config = experts_.default_config(hidden, tokens, multiprocessors(device))
    return Chosen(config, choice.why)


def _config(kind: type[Config], values: Mapping[str, int]) -> Config | None:
    """The configuration with these fields, None for the kernel's default.

    Raises:
        KernelError: fields are missing or unknown.
    """
    if not values:
        return None
    known = {field.name for field in fields(kind)}
    if values.keys() != known:
        wrong = ", ".join(sorted(known ^ values.keys()))
        raise KernelError(
            f"a measured configuration is of another version of spark-prof ({wrong}); measure "
            "again with `spark-prof kernels bench --save`"
        )
    return kind(**values)


def _fits(config: dense.LinearConfig | experts_.MoeConfig, columns: int) -> bool:
    """Whether a configuration, which may be a neighbouring shape's, is one for these columns."""
    shared_out = 1 <= config.split <= -(-columns // _UNIT)
    return shared_out and config.warps in range(1, 33) and config.warps % config.split == 0

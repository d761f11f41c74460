"""The kernels of a decode step whose configurations are searched, each in all layers at once.

For `chained_configs.py`. A part says with what it is launched now, what is worth trying instead,
what is compiled for that, and by which key the dispatcher finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from benchmarks.decoder_step import Layer
from spark_prof.kernels.bench.configurations import VALUES, bf16_candidates, neighbours
from spark_prof.kernels.candidate import Replacement
from spark_prof.kernels.dense import LAYER_DENSE, LinearConfig, dense_code
from spark_prof.kernels.dispatch import UNIT_COLUMNS
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.kernels.moe import LAYER_EXPERTS, MoeConfig, down_code, gate_up_code
from spark_prof.kernels.normed_linear import fits, normed_config
from spark_prof.kernels.operands import multiprocessors, stacks_at_a_time
from spark_prof.kernels.runtime.code import KernelCode
from spark_prof.kernels.tuning import TunedShape

Config = LinearConfig | MoeConfig

LAYOUTS = tuple(
    LinearConfig(*fields)
    for fields in (
        (16, 16, 2, 0, 1, 1), (16, 16, 3, 0, 1, 1), (16, 8, 2, 0, 1, 1), (16, 8, 3, 0, 1, 1),
        (16, 4, 3, 0, 1, 1), (16, 2, 3, 0, 1, 1), (8, 8, 4, 0, 1, 1), (8, 8, 2, 0, 3),
        (8, 8, 2, 1, 2), (8, 8, 3, 0, 2), (8, 8, 3, 0, 2, 2), (8, 8, 3, 1, 2, 2), (4, 4, 2, 0, 6),
        (4, 4, 3, 0, 4, 4), (8, 4, 2, 1, 2, 2),
    )
)  # fmt: skip
"""Those of which some were the fastest of Llama-3.1-8B's matrices alone: more than one field away
from each other (results/llama-fp8-layers-h200.json)."""


@dataclass(frozen=True)
class Part:
    """One kernel of a step, or the two of experts."""

    name: str
    kernels: Sequence[Replacement]  # of each layer
    tokens: int
    field: str = ""  # of an MLP and its configuration; empty where the kernel is all there is
    behind_norm: bool = False

    @property
    def packed(self) -> Any:
        """A layer's weights: `PackedLinear` or `PackedExperts`."""
        whole = self.kernels[0].parts[0]
        return getattr(whole, self.field) if self.field else whole

    @property
    def config(self) -> Config:
        """With which it is launched."""
        whole = self.kernels[0].parts[-1][self.tokens]
        return cast("Config", getattr(whole, self.field) if self.field else whole)

    def put(self, config: Config) -> None:
        """Has it launched so in all layers from now on."""
        for kernel in self.kernels:
            configs = kernel.parts[-1]
            whole = configs[self.tokens]
            configs[self.tokens] = replace(whole, **{self.field: config}) if self.field else config

    @property
    def makes_norm(self) -> bool:
        """Whether the norm before it is made in this kernel."""
        weight, count = self.packed, self.tokens
        return self.behind_norm and (
            normed_config(weight.rows, weight.columns, count, weight.format) is not None
        )

    def codes(self, config: Config) -> list[KernelCode]:
        """What is compiled for a configuration."""
        packed = self.packed
        if isinstance(config, LinearConfig):
            norm, gated = self.makes_norm, self.field == "gate_up"
            return [dense_code(packed.format, packed.columns, self.tokens, config, norm, gated)]
        form, activation = packed.gate_up.format, packed.activation.name
        return [
            gate_up_code(form, packed.hidden, activation, self.tokens, config),
            down_code(form, packed.intermediate, self.tokens, config),
        ]

    def candidates(self) -> list[Config]:
        """What to try, without what is the present one by another name."""
        tried = {self._launched(self.config)}
        candidates = []
        for config in self._alternatives():
            if self._possible(config) and (launched := self._launched(config)) not in tried:
                tried.add(launched)
                candidates.append(config)
        return candidates

    def _launched(self, config: Config) -> tuple[object, ...]:
        return (*self.codes(config), getattr(config, "blocks", 0))

    def _alternatives(self) -> Iterator[Config]:
        """Those that differ in one field; of a matrix also blocks of another size, and others."""
        present = self.config
        yield from neighbours(present)
        if not isinstance(present, LinearConfig):
            return
        for warps in VALUES["warps"]:
            split, left = divmod(warps * present.split, present.warps)
            if split and not left:
                yield replace(present, warps=warps, split=split)
        weight = self.packed
        if weight.format == "bf16" and not self.makes_norm:
            here = multiprocessors(weight.weights.device)
            yield from bf16_candidates(weight.rows, weight.columns, self.tokens, here)
        elif weight.format == "fp8":
            yield from LAYOUTS

    def _possible(self, config: Config) -> bool:
        """Whether a kernel can be launched so; that registers suffice the compiler says."""
        if not isinstance(config, LinearConfig):
            return True
        units, present = -(-self.packed.columns // UNIT_COLUMNS), self.config
        reaches = config.split, config.depth
        too_far = config.split > units or config.split * (config.depth - 1) >= units
        if too_far and reaches != (present.split, vars(present)["depth"]):
            return False
        try:
            stacks_at_a_time(config.warps, config.split)
        except KernelError:
            return False
        if config.x_ahead and self.makes_norm:
            return False  # it has them in shared memory anyway
        return not self.makes_norm or fits(self.packed.columns, self.tokens, config)

    @property
    def work(self) -> TunedShape:
        """By what the dispatcher finds its configuration."""
        packed = self.packed
        if isinstance(self.config, LinearConfig):
            kernel = "normed" if self.makes_norm else LAYER_DENSE
            return TunedShape(kernel, packed.format, packed.rows, packed.columns, self.tokens)
        form, rows, choice = packed.gate_up.format, packed.gate_up.rows, self.kernels[0].parts[1]
        return TunedShape(
            LAYER_EXPERTS, form, rows, packed.hidden, self.tokens, choice.experts, choice.top_k
        )


def parts_of(layers: Sequence[Layer], head: Replacement, tokens: int) -> dict[str, Part]:
    """The parts of a step of all layers by name, what reads most first."""
    mlps, parts = [layer.mlp for layer in layers], []
    if isinstance(mlps[0].parts[-1][tokens], MoeConfig):
        parts.append(Part("experts", mlps, tokens))
    else:
        parts.append(Part("gate_up", mlps, tokens, "gate_up", behind_norm=True))
        parts.append(Part("down", mlps, tokens, "down"))
    parts.append(Part("qkv", [layer.qkv for layer in layers], tokens, behind_norm=True))
    parts.append(Part("o", [layer.o for layer in layers], tokens))
    if head.takes(tokens):
        parts.append(Part("lm_head", [head], tokens))
    return {part.name: part for part in parts}

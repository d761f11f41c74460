"""Opaque torch operators around swapped layers, for models that torch.compile traces.

The compiler sees one operator with a layer's inputs and outputs; its body is Python and runs when
the model runs or a CUDA graph is captured, where it looks at the active side. The layer is found by
a tensor of its own, not by its name: layers of one shape then stay one piece of code to compile.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Body(Protocol):
    """What an operator does when it runs."""

    def run(self, x: torch.Tensor, other: torch.Tensor | None) -> Any:
        """The layer's result for its input and its bias or residual."""


_BODIES: dict[int, Body] = {}
_LIBRARY: list[torch.library.Library] = []

KEY = "spark_prof_key"
"""The name of the buffer by which a module's operator finds its body."""


def key_of(module: Any, body: Body, device: torch.device) -> None:
    """Gives a module its key, by which the operators find that body."""
    key = torch.zeros(16, dtype=torch.uint8, device=device)
    module.register_buffer(KEY, key, persistent=False)
    _BODIES[key.data_ptr()] = body


def register_ops() -> None:
    """Registers the operators, once a process."""
    if _LIBRARY:
        return
    library = torch.library.Library("spark_prof", "FRAGMENT")
    _LIBRARY.append(library)
    for schema, run, fake in (
        ("linear(Tensor x, Tensor? bias, Tensor key, int rows) -> Tensor", _linear, _fake_linear),
        ("norm(Tensor x, Tensor key) -> Tensor", _norm, _fake_norm),
        (
            "norm_residual(Tensor x, Tensor residual, Tensor key) -> (Tensor, Tensor)",
            _norm_residual,
            _fake_norm_residual,
        ),
    ):
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"spark_prof::{name}", fake, lib=library)


def linear(x: torch.Tensor, bias: torch.Tensor | None, key: torch.Tensor, rows: int) -> Any:
    """The operator of a matrix of that many rows."""
    return torch.ops.spark_prof.linear(x, bias, key, rows)


def norm(x: torch.Tensor, key: torch.Tensor) -> Any:
    """The operator of a norm."""
    return torch.ops.spark_prof.norm(x, key)


def norm_residual(x: torch.Tensor, residual: torch.Tensor, key: torch.Tensor) -> Any:
    """The operator of a norm that first adds a residual."""
    return torch.ops.spark_prof.norm_residual(x, residual, key)


def _body(key: torch.Tensor) -> Body:
    return _BODIES[key.data_ptr()]


def _linear(x: torch.Tensor, bias: torch.Tensor | None, key: torch.Tensor, rows: int) -> Any:  # noqa: ARG001 the shape of the result
    return _body(key).run(x, bias)


def _fake_linear(
    x: torch.Tensor,
    bias: torch.Tensor | None,  # noqa: ARG001
    key: torch.Tensor,  # noqa: ARG001
    rows: int,
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], rows))


def _norm(x: torch.Tensor, key: torch.Tensor) -> Any:
    return _body(key).run(x, None)


def _fake_norm(x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x)


def _norm_residual(x: torch.Tensor, residual: torch.Tensor, key: torch.Tensor) -> Any:
    return _body(key).run(x, residual)


def _fake_norm_residual(
    x: torch.Tensor,
    residual: torch.Tensor,
    key: torch.Tensor,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(residual)

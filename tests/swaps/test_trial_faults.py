"""Each planted fault is found on trial, and no right kernel is called wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spark_prof.kernels.candidate import Replacement
from spark_prof.swaps import layer_dispatch
from spark_prof.swaps.activation_rounding import EXPERTS, KERNELS
from spark_prof.swaps.build import BuiltReplacement, Kind, SwapPoint
from spark_prof.swaps.guard import HUNG, GuardedReplacement
from spark_prof.swaps.install import _refuse_wrong
from spark_prof.swaps.swap_settings import SIDES, Rounded, layer_bound
from spark_prof.swaps.trial import _not_taken, try_all, try_dispatch
from tests.rows import each_row
from tests.swaps.layers import Linear, Runner, TinyRMSNorm, replacing

pytestmark = pytest.mark.usefixtures("sides")

Run = Callable[..., Any]
Fault = Callable[[Run], Run]
"""A right kernel with something wrong around it."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """The config of an engine; on one core, as the matrices here are small."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    yield pytest.importorskip("vllm.config").VllmConfig()
    torch.set_num_threads(cores)


@dataclass(frozen=True)
class Place:
    """A place that is swapped, with a right kernel for it."""

    slot: str
    kind: Kind
    module: torch.nn.Module
    right: Run


def _linear(slot: str, *, bias: bool = False) -> Place:
    layer = Linear(24, 16)
    layer.register_parameter("bias", torch.nn.Parameter(torch.randn(24)) if bias else None)
    weight = layer.weight.detach().clone()
    return Place(slot, "matrix", layer, lambda x, b: torch.nn.functional.linear(x, weight, b))


def _norm() -> Place:
    layer = TinyRMSNorm(16)

    def right(x: torch.Tensor, residual: torch.Tensor | None) -> Any:
        total = x.double() if residual is None else x.double() + residual.double()
        y = (total * (total.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)
        return y if residual is None else (y, total.to(x.dtype))

    return Place("norm", "norm", layer, right)


def _moe(*, monolithic: bool) -> Place:
    runner = Runner(monolithic=monolithic, padding=4)
    weight = runner.routed_experts.weight.detach()[:, :16, :16].clone()
    return Place("moe", "experts", runner, _experts(weight))


def _experts(weight: torch.Tensor) -> Run:
    def right(x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        weights, chosen = logits.softmax(-1).topk(2)
        return (torch.einsum("mh,mkih->mki", x, weight[chosen]) * weights[..., None]).sum(1)

    return right


def _router() -> Place:
    def right(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = logits.softmax(-1).sort(-1, descending=True)
        return weights[:, :2].contiguous(), chosen[:, :2].to(torch.int32)

    return Place("router", "choice", Runner(), right)


PLACES: dict[str, Callable[[], Place]] = {
    "qkv": lambda: _linear("qkv", bias=True),
    "o": lambda: _linear("o"),
    "mlp": lambda: _linear("mlp"),
    "lm_head": lambda: _linear("lm_head"),
    "norm": _norm,
    "moe": lambda: _moe(monolithic=False),
    "moe, monolithic": lambda: _moe(monolithic=True),
    "router": _router,
}


def _on_trial(
    places: list[Place], runs: list[Run], engine: Any, tokens: int = 0, *, serve: bool = True
) -> list[GuardedReplacement]:
    """The replacements after their trial, in an engine that serves or one that is measured."""
    swapped = []
    for number, (place, run) in enumerate(zip(places, runs, strict=True)):
        name = f"layers.{number}.{place.slot}"
        guarded = GuardedReplacement(name, f"{place.slot}=mine", replacing(run, tokens))
        swapped.append(
            BuiltReplacement(
                SwapPoint(place.slot, name, place.module, place.kind), {}, {"b": guarded}
            )
        )
    try_all(swapped, engine, 60.0)
    if serve:
        _refuse_wrong(swapped)
    return [swap.choices["b"] for swap in swapped]


def _changed(result: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The result with something done to its first tensor, which stays the kernel's own."""
    parts = [each.clone() for each in (result if isinstance(result, tuple) else (result,))]
    change(parts[0])
    return tuple(parts) if isinstance(result, tuple) else parts[0]


def _spoils(
    change: Callable[[torch.Tensor, torch.Tensor], Any], only: Callable[[int], bool] = bool
) -> Fault:
    """Something is done to the result for some tokens, where their number is meant."""

    def fault(right: Run) -> Run:
        def run(x: torch.Tensor, *others: Any) -> Any:
            result = right(x, *others)
            return _changed(result, lambda y: change(y, x)) if only(len(x)) else result

        return run

    return fault


def _scaled(count: int, row: int, only: Callable[[int], bool] = lambda _: True) -> Fault:
    """A row of calls with that many rows, and of those whose number is meant, is too large."""

    def fault(right: Run) -> Run:
        calls = [0]

        def meant(rows: int) -> bool:
            calls[0] += rows == count
            return rows == count and only(calls[0])

        return _spoils(lambda y, _: y[row].mul_(1.1), meant)(right)

    return fault


def _beyond(count: int) -> Fault:
    """Wrong for more rows than that."""
    return _spoils(lambda y, _: y.mul_(1.1), lambda rows: rows > count)


def _keeps(key: Callable[[torch.Tensor], Any]) -> Fault:
    """Keeps what it returned first for tokens that are alike in something."""

    def fault(right: Run) -> Run:
        kept: dict[Any, Any] = {}
        return lambda x, *others: kept.setdefault(key(x), right(x, *others))

    return fault


def _of_the_last(right: Run) -> Run:
    """Adds to its result something of the call before."""
    before = [0.0]

    def run(x: torch.Tensor, *others: Any) -> Any:
        result = _changed(right(x, *others), lambda y: y.add_(before[0]))
        before[0] = 0.1
        return result

    return run


def _writes(at: int) -> Fault:
    """Writes one element, counted from the first of its rows, or from behind their end."""

    def fault(right: Run) -> Run:
        def run(x: torch.Tensor, *others: Any) -> Any:
            result = right(x, *others)
            if len(x) == 7:
                place = x.storage_offset() + (x.numel() if at >= 0 else 0) + at
                torch.as_strided(x, (1,), (1,), place).fill_(0.5)
            return result

        return run

    return fault


def _returns_its_input(right: Run) -> Run:
    def run(x: torch.Tensor, *others: Any) -> Any:
        result = right(x, *others)
        parts = result if isinstance(result, tuple) else (result,)
        if len(x) == 4 and parts[0].shape == x.shape:
            x.copy_(parts[0])
            return (x, *parts[1:]) if isinstance(result, tuple) else x
        return _changed(result, lambda y: y.mul_(1.1)) if len(x) == 4 else result

    return run


def _once(y: torch.Tensor, x: torch.Tensor) -> None:
    """A row that is there twice counts for its first one only."""
    twice = [any(torch.equal(x[i], x[j]) for j in range(i)) for i in range(min(16, len(x)))]
    first = 1 - torch.tensor(twice).to(torch.float32)[:, None]
    y[: len(first)].mul_(first)


FAULTS: dict[str, Fault] = {
    **{f"the last of {n} rows": _scaled(n, n - 1) for n in (*range(1, 17), 17, 130)},
    **{f"the second call with {n} rows": _scaled(n, n - 1, lambda c: c == 2) for n in (2, 9, 16)},
    **{f"the first call with {n} rows": _scaled(n, 0, lambda c: c == 1) for n in (1, 2, 16)},
    "more than 16 rows": _beyond(16),
    "a prefill": _beyond(130),
    "two rows change places": _spoils(
        lambda y, _: y.copy_(y[[0, 3, 2, 1, 4]]), lambda rows: rows == 5
    ),
    "keeps the first result of a number of rows": _keeps(len),
    "keeps the result of an address": _keeps(lambda x: (x.data_ptr(), len(x))),
    "adds something of the call before": _of_the_last,
    "writes behind its rows": _writes(0),
    "writes far behind its rows": _writes(500),
    "writes before its rows": _writes(-1),
    "writes to its input": _spoils(lambda _, x: x[1].mul_(2), lambda rows: rows == 3),
    "returns its input": _returns_its_input,
    "one column": _spoils(lambda y, _: y[:, -1].zero_()),
}
"""In every slot."""

OF_TOKENS: dict[str, Fault] = {
    # Rows of zeros, as those that pad a CUDA graph, get what they should not.
    "rows of zeros": _spoils(lambda y, x: y.add_((x == 0).all(-1, keepdim=True) * 0.3)),
    "takes repeated rows once": _spoils(_once),
    "clamps large values": lambda right: lambda x, *others: right(x.clamp(-20, 20), *others),
}
"""In slots that take activations."""


def _planted() -> Iterator[tuple[str, str, Fault]]:
    for slot in PLACES:
        for what, fault in FAULTS.items():
            # One request has one row there, and the engine of these tests takes 128 of them.
            if slot != "lm_head" or what not in ("a prefill", "the last of 130 rows"):
                yield slot, what, fault
        for what, fault in OF_TOKENS.items():
            # A norm's result does not depend on how large a token is.
            if slot != "router" and (slot, what) != ("norm", "clamps large values"):
                yield slot, what, fault


@pytest.mark.parametrize("slot", PLACES)
def test_a_right_kernel_passes(slot: str, engine: Any) -> None:
    place = PLACES[slot]()
    (guarded,) = _on_trial([place], [place.right], engine)
    assert guarded.why == ""
    assert guarded.error is not None
    assert guarded.error.relative_l2 < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("slot", PLACES)
def test_each_planted_fault_is_found(slot: str, engine: Any) -> None:
    left = []
    for where, what, fault in _planted():
        if where != slot:
            continue
        place = PLACES[slot]()
        (guarded,) = _on_trial([place], [fault(place.right)], engine)
        if guarded.live:
            left.append(what)
    assert left == []


@pytest.mark.slow
def test_each_row_of_each_number_of_rows_is_looked_at(engine: Any) -> None:
    left = []
    for count in range(1, 17):
        for row in range(count):
            place = _linear("o")
            (guarded,) = _on_trial([place], [_scaled(count, row)(place.right)], engine)
            if guarded.live or f"row {row} of {count} row" not in guarded.why:
                left.append((count, row, guarded.why))
    assert left == []


@pytest.mark.parametrize("expert", range(8))
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_one_wrong_expert_is_found_whatever_number_of_rows_runs(
    expert: int, tokens: int, engine: Any
) -> None:
    place = _moe(monolithic=False)
    weight = place.module.routed_experts.weight.detach()[:, :16, :16].clone()
    weight[expert] = weight[(expert + 1) % 8]
    (guarded,) = _on_trial([place], [_experts(weight)], engine, tokens)
    assert not guarded.live


@pytest.mark.slow
@pytest.mark.parametrize("wrong", range(4))
def test_a_fault_of_one_layer_is_that_layers(wrong: int, engine: Any) -> None:
    for make in PLACES.values():
        places = [make() for _ in range(4)]
        runs = [place.right for place in places]
        runs[wrong] = _scaled(2, 1)(runs[wrong])
        tried = _on_trial(places, runs, engine)
        assert [guarded.live for guarded in tried] == [at != wrong for at in range(4)]
        assert "row 1 of 2 rows" in tried[wrong].why
        assert "at most 1.56% is allowed" in tried[wrong].why


def test_without_vllms_kernel_the_numbers_of_rows_are_held_to_each_other(engine: Any) -> None:
    for fault, live in ((lambda right: right, True), (_scaled(2, 1), False), (_beyond(16), False)):
        place = _linear("o")
        place.module.quant_method.apply = None  # what runs in no process but an engine's
        (guarded,) = _on_trial([place], [fault(place.right)], engine)
        assert guarded.live == live
        assert guarded.error is None


def _put_in(place: Place, guarded: GuardedReplacement) -> BuiltReplacement:
    point = SwapPoint(place.slot, place.slot, place.module, place.kind)
    if place.kind == "experts":
        layer_dispatch.swap_experts(point, {"b": guarded})
    elif place.kind == "choice":
        layer_dispatch.swap_choice(point, {"b": guarded})
    elif place.kind == "norm":
        layer_dispatch.swap_norm(point, {"b": guarded}, compiled=False)
    else:
        layer_dispatch.swap_linear(point, {"b": guarded}, compiled=False)
    return BuiltReplacement(point, {}, {"b": guarded})


@pytest.mark.parametrize("slot", PLACES)
@pytest.mark.parametrize("tokens", [0, 1, 5, 16, 40])
def test_what_a_kernel_says_that_it_takes_is_what_it_gets(
    slot: str, tokens: int, engine: Any
) -> None:
    got: list[int] = []
    place = PLACES[slot]()

    def run(x: torch.Tensor, *others: Any) -> Any:
        got.append(len(x))
        return place.right(x, *others)

    guarded = GuardedReplacement(slot, f"{slot}=mine", replacing(run, tokens))
    try_dispatch([_put_in(place, guarded)], engine, 60.0)
    assert guarded.why == ""
    assert guarded.calls == {}
    assert SIDES.active == "a"
    assert set(got) == {min(tokens, 16) or 16}


@pytest.mark.parametrize("slot", PLACES)
@pytest.mark.parametrize("ran", [0, 1])
def test_what_is_dispatched_otherwise_is_turned_off(
    slot: str, ran: int, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher that asks nobody how many rows a kernel takes, and one that never runs it."""
    place = PLACES[slot]()
    guarded = GuardedReplacement(slot, f"{slot}=mine", replacing(place.right, 4))
    monkeypatch.setattr(layer_dispatch, "_chosen", lambda *_: guarded if ran else None)
    try_dispatch([_put_in(place, guarded)], engine, 60.0)
    assert not guarded.live
    assert f"it ran {ran} times" in guarded.why
    assert f"with {5 if ran else 4} rows" in guarded.why


def test_a_doubled_scale_shows_as_an_error_of_one(engine: Any) -> None:
    """Where a gate follows it runs."""
    place = _linear("qkv")
    double = [lambda x, bias: 2 * place.right(x, bias)]
    (guarded,) = _on_trial([place], double, engine, serve=False)
    assert guarded.live
    assert guarded.error is not None
    assert guarded.error.relative_l2 == pytest.approx(1.0)


_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _rounded(x: torch.Tensor, to: str, width: int) -> torch.Tensor:
    """Activations as vLLM's kernels round them: E4M3 with a scale of each row, E2M1 of 16."""
    blocks = x.float().unflatten(-1, (-1, width))
    top = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    if to == "fp8":
        values = (blocks / top * 448).to(torch.float8_e4m3fn).float() * top / 448
    else:
        scaled = blocks / top * 6
        at = torch.bucketize(scaled.abs(), (_E2M1[1:] + _E2M1[:-1]) / 2)
        values = _E2M1[at] * scaled.sign() * top / 6
    return values.flatten(-2).to(x.dtype)


def _rounds(slot: str, to: Rounded, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose stock layer rounds what it is given, as it says itself."""
    torch.manual_seed(7)
    monkeypatch.setitem(KERNELS, "Rounds", to)
    monkeypatch.setitem(EXPERTS, "rounds", to)
    if slot == "moe":
        place = _moe(monolithic=False)
        experts = place.module.routed_experts
        experts.quant_method.moe_quant_config = SimpleNamespace(quant_dtype="rounds")
        plain = experts.forward_modular
        experts.forward_modular = lambda x, **given: plain(x=_rounded(x, to, 20), **given)
        return place
    layer = Linear(96, 256)
    layer.quant_method.kernel = type("RoundsLinearKernel", (), {})()
    layer.quant_method.apply = lambda layer, x, bias=None: torch.nn.functional.linear(
        _rounded(x, to, 16 if to == "fp4" else 256), layer.weight, bias
    )
    weight = layer.weight.detach().clone()
    return Place(slot, "matrix", layer, lambda x, b: torch.nn.functional.linear(x, weight, b))


def _swapped_experts(place: Place) -> Run:
    weight = place.module.routed_experts.weight.detach()[:, :16, :16].clone()
    return _experts(weight[[1, 0, *range(2, 8)]])


ROUNDED: tuple[tuple[str, Rounded], ...] = (
    ("qkv", "fp8"), ("qkv", "fp4"), ("o", "fp8"), ("moe", "fp8"), ("moe", "fp4"),
)  # fmt: skip

GROSS: dict[str, Fault] = {
    "a doubled scale": _spoils(lambda y, _: y.mul_(2)),
    "a wrong row": _spoils(lambda y, _: y[2].copy_(y[1].clone()), lambda rows: rows == 5),
    "a doubled row": _spoils(lambda y, _: y[-1].mul_(2), lambda rows: rows == 16),
    "one column": _spoils(lambda y, _: y[:, -1].add_(3 * y.square().mean().sqrt())),
    "clamps large values": OF_TOKENS["clamps large values"],
    "keeps the first result of a number of rows": _keeps(len),
}


@each_row(("slot", "to"), ROUNDED[:-1])  # 16 features are too few for that bound
def test_a_right_kernel_passes_where_vllms_rounds_activations(
    slot: str, to: Rounded, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _rounds(slot, to, monkeypatch)
    (guarded,) = _on_trial([place], [place.right], engine)
    assert (guarded.why, guarded.rounded) == ("", to)
    assert guarded.error is not None
    assert 2.0**-6 < guarded.error.relative_l2 < layer_bound("kept", slot, "", to)
    # Where that is not known it is a fault.
    monkeypatch.setitem(KERNELS, "Rounds", "")
    monkeypatch.setitem(EXPERTS, "rounds", "")
    (guarded,) = _on_trial([place], [place.right], engine)
    assert not guarded.live


@each_row(("slot", "to"), ROUNDED)
def test_gross_faults_are_found_where_vllms_rounds_activations(
    slot: str, to: Rounded, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []
    for what, fault in GROSS.items():
        place = _rounds(slot, to, monkeypatch)
        (guarded,) = _on_trial([place], [fault(place.right)], engine)
        if guarded.live:
            left.append(what)
    if slot == "moe":
        place = _rounds(slot, to, monkeypatch)
        (guarded,) = _on_trial([place], [_swapped_experts(place)], engine)
        assert not guarded.live
    assert left == []


def test_a_static_scale_cuts_no_made_up_token_off(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _rounds("qkv", "fp8", monkeypatch)
    method, scale = place.module.quant_method, 1.5 / 448
    place.module.input_scale = torch.tensor(scale)
    method.apply = lambda layer, x, bias=None: torch.nn.functional.linear(
        (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale, layer.weight, bias
    )
    (guarded,) = _on_trial([place], [place.right], engine)
    assert guarded.why == ""
    del place.module.input_scale  # then nothing says how much it holds
    (guarded,) = _on_trial([place], [place.right], engine)
    assert not guarded.live


def test_a_kernel_that_is_held_to_itself_gets_no_allowance(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _rounds("qkv", "fp8", monkeypatch)
    place.module.quant_method.apply = None
    wrong = _spoils(lambda y, _: y[-1].mul_(1.03), lambda rows: rows == 5)
    (guarded,) = _on_trial([place], [wrong(place.right)], engine)
    assert not guarded.live


def _sleeps(x: torch.Tensor, _: Any) -> torch.Tensor:
    time.sleep(2.1)
    return x.new_zeros(x.shape[0], 24)


@pytest.mark.slow
@each_row(
    ("run", "says"),
    [
        (lambda x, _: x / "two", "TypeError"),
        (lambda x, _: x[:, :3], "where vLLM's kernel returns"),
        (lambda x, _: x.new_zeros(x.shape[0], 24, dtype=torch.float64), "torch.float64"),
        (lambda x, _: torch.randn(int(torch.randint(1, 99, ())), 24), "it returns"),
        (lambda *_: None, "TypeError"),
        (lambda x, _: x.new_full((x.shape[0], 24), float("nan")), "NaN or infinity"),
        (_sleeps, "a call took"),
    ],
)
def test_a_wrong_kernel_is_off(run: Any, says: str, engine: Any) -> None:
    (guarded,) = _on_trial([_linear("qkv")], [run], engine)
    assert not guarded.live
    assert says in guarded.why


@pytest.mark.slow
def test_a_kernel_that_never_comes_back_ends_the_process_with_a_line() -> None:
    program = (
        "import time\nfrom spark_prof.swaps.guard import deadline\n"
        "with deadline(0.2, 'o_proj (o=mine) has not ended'):\n    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == HUNG
    assert done.stderr == "spark-prof: o_proj (o=mine) has not ended for 0 s: the process ends\n"


@each_row("most", [3, 17, 18, 41, 100])
@each_row("end", [0, 5, 17, 40])
@each_row("holes", [set(), {1}, {4, 9}, {17}, {18}])
def test_numbers_that_are_left_to_vllm_are_the_first_hole_and_what_is_beyond(
    most: int, end: int, holes: set[int]
) -> None:
    """Holes are looked for up to 17 tokens; a replacement without an end has none beyond."""

    def takes(count: int) -> bool:
        return count not in holes and (not end or count <= end)

    fits = holes.isdisjoint if holes else None
    made = Replacement(print, end, "kept", fits=fits and (lambda count: fits({count})))
    assert [made.takes(count) for count in range(1, 50)] == [*map(takes, range(1, 50))]
    guarded: Any = SimpleNamespace(replacement=made, takes=made.takes)
    left = [n for n in range(1, min(most, 17) + 1) if not takes(n)]
    beyond = [end + 1] if 0 < end < most else left[-1:]
    assert _not_taken(guarded, most) == sorted({*(left or beyond)[:1], *beyond})

"""The search of configurations in a chain of layers, on the CPU with times that are made up."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import chained_configs, decoder_step
from benchmarks.chain_parts import LAYOUTS, Part, parts_of
from benchmarks.chained_configs import Chain, agrees, chains_of
from benchmarks.decoder_step import MODELS, Layer, Model, bytes_of, make_head, make_layer
from spark_prof.kernels.candidate import NormLayer, Replacement
from spark_prof.kernels.dense import LAYER_DENSE, LinearConfig
from spark_prof.kernels.moe import LAYER_EXPERTS
from spark_prof.kernels.normed_linear import choose_normed, insisted_config
from spark_prof.kernels.normed_mlp import PackedMlp, mlp_config
from spark_prof.kernels.pack import PackedLinear
from spark_prof.kernels.tuning import ALONE, known_runs
from tests.emulator.compiler import compiler

DENSE = Model(2, 1024, 8, 2, 64, 0, 0, 640, 2048, "fp8")
EXPERTS = Model(1, 1024, 8, 2, 64, 4, 2, 128, 2048, "mxfp4", gpt_oss=True)
MAMBA = Model(
    1, 1024, 8, 2, 64, 4, 2, 128, 2048, "fp8", matrix_rows=1168, shared=2, activation="relu2"
)
MLA = Model(1, 1024, 8, 8, 64, 4, 2, 128, 2048, "bf16", matrix_rows=1168, shared=2)
COUNTS = [9, 1]
"""With more than 8 tokens the norm is a kernel of its own."""

FASTER = {
    "gate_up": {"blocks": 3},
    "down": {"min_blocks": 1},
    "qkv": {"blocks": 2},
    "o": {"x_ahead": 1},
    "lm_head": {"min_blocks": 5},
    "experts": {"down_warps": 4},
}
"""What each kernel is a tenth of a step faster with."""


@pytest.fixture(autouse=True)
def _on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (chained_configs, decoder_step):
        monkeypatch.setattr(module, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(chained_configs, "replay_times", made_up_times)
    monkeypatch.setattr(chained_configs, "same_when_replayed", lambda step: True)
    monkeypatch.setattr(chained_configs, "step_of", ToldStep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(MODELS, "dense", DENSE)
    for name, model in (("experts", EXPERTS), ("mamba", MAMBA), ("mla", MLA)):
        monkeypatch.setitem(MODELS, name, model)
    known_runs.cache_clear()
    yield
    known_runs.cache_clear()


class ToldStep:
    """A step that says with what its kernels are launched."""

    def __init__(
        self,
        model: Model,
        layers: list[Layer],
        head: Replacement,
        weight: torch.Tensor,
        tokens: int,
        context: int,
    ) -> None:
        self.run = decoder_step.step_of(model, layers, head, weight, tokens, context)
        # Of a layer each: a configuration has to be put into all of them.
        self.layers = [parts_of([layer], head, tokens) for layer in layers]

    def ms(self) -> float:
        """A tenth less for each kernel that is launched as `FASTER` says in all layers."""
        return 1.0 - sum(
            0.1 for name in self.layers[0] if all(fast(parts[name]) for parts in self.layers)
        )


def fast(part: Part) -> bool:
    return FASTER[part.name].items() <= asdict(part.config).items()


def made_up_times(step: Any, count: int) -> tuple[None, list[float]]:
    return None, [step.ms()] * count


def search(tmp_path: Path, model: str, *, keep: bool, seconds: float = 60) -> dict[str, Any]:
    result = tmp_path / "result.json"
    options = argparse.Namespace(
        result=result, model=model, tokens=COUNTS, seconds=seconds, qkv="kept", keep=keep
    )
    assert chained_configs.searched(options) == 0
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def built(model: Model, tokens: int) -> dict[str, dict[str, int]]:
    """The configurations of layers that are built now, as slots build them."""
    layers = [make_layer(model, number, 1, quantized=False) for number in range(model.layers)]
    parts = parts_of(layers, make_head(model, quantized=False)[0], tokens)
    return {name: asdict(part.config) for name, part in parts.items()}


def some_chain(model: Model, tokens: int) -> Chain:
    return next(chains_of(model, [tokens], quantized=False))


@pytest.fixture
def _agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chained_configs, "agrees", lambda *_: True)


@pytest.mark.usefixtures("_agreeing")
@pytest.mark.parametrize("model", ["dense", "experts", "mamba", "mla"])
def test_what_is_kept_is_what_layers_are_then_built_with(tmp_path: Path, model: str) -> None:
    before = {tokens: built(MODELS[model], tokens) for tokens in (1, 2, 9, 16)}
    found = search(tmp_path, model, keep=True)
    parts = {*FASTER} - ({"experts"} if model == "dense" else {"gate_up", "down"})
    for step in found["steps"]:
        tokens = step["tokens"]
        assert step["before"] == before[tokens]
        assert built(MODELS[model], tokens) == step["after"] != step["before"]
        for name in parts:
            assert FASTER[name].items() <= step["after"][name].items(), (tokens, name)
        assert step["ms_before"] == pytest.approx(1.0)
        assert step["ms_after"] == pytest.approx(1.0 - 0.1 * len(parts))
    assert built(MODELS[model], 16) == before[16], "beyond what was measured"
    between, at_9 = built(MODELS[model], 2), found["steps"][0]["after"]
    alone = {"qkv", "gate_up"}  # of kernels with the norm in them 1 token alone was measured
    for name in parts:
        assert between[name] == (before[2] if name in alone else at_9)[name], name
    kernels = {(row["work"]["tokens"], row["work"]["kernel"]) for row in found["run"]["rows"]}
    of_mlp = set() if model == "dense" else {(9, LAYER_EXPERTS), (1, LAYER_EXPERTS)}
    assert kernels == {(9, LAYER_DENSE), (1, LAYER_DENSE), (1, "normed")} | of_mlp
    assert {row["fallback"] for row in found["run"]["rows"]} == {ALONE}


@pytest.mark.usefixtures("_agreeing")
def test_nothing_is_kept_that_nobody_asked_for(tmp_path: Path) -> None:
    before = built(DENSE, 1)
    search(tmp_path, "dense", keep=False)
    known_runs.cache_clear()
    assert built(DENSE, 1) == before


@pytest.mark.usefixtures("_agreeing")
def test_where_nothing_is_faster_all_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what an earlier search has kept, and whatever like shapes were measured with."""
    search(tmp_path, "dense", keep=True)
    kept = {tokens: built(DENSE, tokens) for tokens in COUNTS}
    monkeypatch.setattr(ToldStep, "ms", lambda _: 1.0)
    found = search(tmp_path, "dense", keep=True)
    assert {step["tokens"]: step["after"] for step in found["steps"]} == kept
    assert {tokens: built(DENSE, tokens) for tokens in COUNTS} == kept
    assert all(row["us"] == row["fallback_us"] for row in found["run"]["rows"])


@pytest.mark.usefixtures("_agreeing")
def test_what_is_wrong_beside_kernels_that_overlap_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_fast_o(step: ToldStep) -> bool:
        return not any(fast(parts["o"]) for parts in step.layers)

    monkeypatch.setattr(chained_configs, "same_when_replayed", without_fast_o)
    found = search(tmp_path, "dense", keep=False)
    assert all(step["same_results"] for step in found["steps"])
    assert not any(FASTER["o"].items() <= step["after"]["o"].items() for step in found["steps"])
    assert "o: LinearConfig(" in (said := capsys.readouterr().out)
    assert "gives other results in a graph" in said


@pytest.mark.usefixtures("_agreeing")
def test_without_time_nothing_is_changed(tmp_path: Path) -> None:
    found = search(tmp_path, "dense", keep=False, seconds=0)
    assert [step["tried"] for step in found["steps"]] == [0, 0]
    assert all(step["before"] == step["after"] for step in found["steps"])


@pytest.mark.parametrize("tokens", COUNTS)
def test_candidates_differ_from_each_other_and_can_be_compiled(tokens: int) -> None:
    for part in some_chain(DENSE, tokens).parts.values():
        configs = part.candidates()
        assert part.config not in configs
        launched = [(*part.codes(config), vars(config)["blocks"]) for config in configs]
        assert len({*launched}) == len(launched) > 5
        assert all(config.warps % config.split == 0 for config in configs)


def test_experts_that_all_tokens_take_are_read_once() -> None:
    """Of Nemotron-3-Nano and DeepSeek-V2-Lite, as their configs have them."""
    for name, active in (("nemotron-3-nano-fp8", 3.447e9), ("deepseek-v2-lite", 4.63e9)):
        model = MODELS[name]
        one, eight = (bytes_of(model, model.layers, tokens, quantized=False) for tokens in (1, 8))
        assert one == pytest.approx(active, rel=0.002)
        of_one_token = model.layers * model.top_k * model.inner * model.hidden
        pair_bytes = {"relu2": 2.0, "silu": 6.0}[model.activation]  # of up and down, with gate
        assert eight - one == 7 * pair_bytes * of_one_token


@pytest.mark.parametrize(("tokens", "fused"), [(1, True), (8, False)])
def test_llama_as_it_is_on_a_gpu(tokens: int, fused: bool) -> None:
    """In its real shapes, of weights that are nowhere."""
    model, empty = MODELS["llama-3.1-8b-fp8"], torch.empty(0, dtype=torch.uint8)
    assert 7.4e9 < bytes_of(model, model.layers, tokens, quantized=False) < 8.1e9
    up, down, qkv = (
        PackedLinear("fp8", rows, columns, empty, empty, empty)
        for rows, columns in ((28672, 4096), (4096, 14336), (model.qkv_rows, 4096))
    )
    mlp = PackedMlp(NormLayer("", empty, 1e-5), up, down)
    fused_qkv = choose_normed(qkv, tokens, 132) or insisted_config(qkv, tokens)
    of_mlp, of_qkv = (
        Replacement(lambda: None, 16, "kept", parts=(weights, {tokens: config}))
        for weights, config in ((mlp, mlp_config(mlp, tokens)), (qkv, fused_qkv))
    )
    searched = [
        Part("gate_up", [of_mlp], tokens, "gate_up", behind_norm=True),
        Part("down", [of_mlp], tokens, "down"),
        Part("qkv", [of_qkv], tokens, behind_norm=True),
    ]
    assert [part.makes_norm for part in searched] == [fused, False, fused]
    for part in searched:
        assert part.config in LAYOUTS or part.name == "gate_up" or fused
        assert 20 <= len(part.candidates()) <= 60
        name = "normed" if fused and part.behind_norm else LAYER_DENSE
        assert (part.work.kernel, part.work.rows) == (name, part.packed.rows)
        norms = [dict(code.defines).get("NORM") for code in part.codes(part.config)]
        assert norms == [1 if name == "normed" else None]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run on the CPU")
@pytest.mark.slow
@pytest.mark.parametrize("tokens", COUNTS)
@pytest.mark.parametrize("model", [DENSE, MAMBA, MLA], ids=["dense", "mamba", "mla"])
def test_a_step_runs_and_its_configurations_agree(tokens: int, model: Model) -> None:
    with torch.no_grad():
        chain = some_chain(model, tokens)
        assert isinstance(chain.step, ToldStep)
        logits = chain.step.run()
        assert logits.shape == (tokens, 2048)
        assert logits.isfinite().all()
        before = chain.configs
        for part in chain.parts.values():
            part.put(part.candidates()[-1])
        assert chain.configs != before
        assert agrees(chain, model, before)
        torch.testing.assert_close(chain.step.run(), logits, rtol=0.05, atol=0.05)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run on the CPU")
def test_other_results_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        chain = some_chain(DENSE, 1)
        before = chain.configs
        chain.parts["o"].put(LinearConfig(2, 1, 1, 0, 1))
        o, run = chain.layers[0].o, chain.layers[0].o.run

        def wrong(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            factor = 1.0 if o.parts[-1][1] == before["o"] else 1.1
            result: torch.Tensor = run(x, bias) * factor
            return result

        object.__setattr__(o, "run", wrong)
        assert not agrees(chain, DENSE, before)

"""Which layers of Nemotron-3-Nano and Qwen3-Next are taken, each other one with its reason.

The models are vLLM's own classes, with fewer and narrower layers than the public ones have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.ab import CASES, HYBRID  # noqa: E402
from benchmarks.architecture_table import ARCHITECTURES, config_of  # noqa: E402
from demo.models import MODELS  # noqa: E402
from spark_prof.kernels.candidate import (  # noqa: E402
    ExpertsLayer,
    LinearLayer,
    NormedExpertsLayer,
    NormedLinearLayer,
    RouterLayer,
)
from spark_prof.kernels.check.inputs import decode, make_activations, make_logits  # noqa: E402
from spark_prof.kernels.check.oracles import (  # noqa: E402
    linear_oracle,
    moe_oracle,
    normed_linear_oracle,
    routing_oracle,
)
from spark_prof.kernels.check.verdict import Judgement, judge  # noqa: E402
from spark_prof.rules.components import role_of  # noqa: E402
from spark_prof.swaps.build import BuiltReplacement, build_all, find_points  # noqa: E402
from spark_prof.swaps.decoder_layer import read_part  # noqa: E402
from spark_prof.swaps.dummy import fill_dummy  # noqa: E402
from spark_prof.swaps.live_weights import read_layer  # noqa: E402
from spark_prof.swaps.swap_settings import parse_swaps  # noqa: E402
from tests.emulator.compiler import compiler  # noqa: E402
from tests.rows import each_row  # noqa: E402
from tests.swaps import vllm_layers  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("vllm_world"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler: kernels do not run"),
]

NARROW: dict[str, dict[str, Any]] = {
    "nemotron-3-nano-fp8": {
        "hybrid_override_pattern": "ME*",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "n_routed_experts": 16,
        "moe_intermediate_size": 96,
        "moe_shared_expert_intermediate_size": 192,
        "mamba_num_heads": 8,
        "mamba_head_dim": 32,
        "n_groups": 2,
        "ssm_state_size": 16,
        "num_attention_heads": 4,
        "head_dim": 64,
        "vocab_size": 512,
    },
    "qwen3-next-80b-a3b-nvfp4": {
        "full_attention_interval": 2,
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_experts": 16,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 96,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_attention_heads": 4,
        "head_dim": 64,
        "vocab_size": 512,
    },
}
"""What a model of this test has of its own."""
SUPER = "nemotron-3-nano-fp8 with latent experts in groups"
"""As Nemotron-3-Super has them: experts between two projections, chosen among groups."""
NARROW |= {
    SUPER: NARROW["nemotron-3-nano-fp8"] | {"moe_latent_size": 64, "n_group": 4, "topk_group": 2}
}

TAKEN: Mapping[str, dict[str, str]] = {
    "nemotron-3-nano-fp8": {
        "qkv mixer.in_proj": "fp8", "qkv mixer.qkv_proj": "fp8", "o mixer.out_proj": "fp8",
        "o mixer.o_proj": "fp8", "mlp mixer.shared_experts.up_proj": "fp8",
        "router mixer.experts": "6 of 16 experts", "moe mixer.experts": "fp8 16 experts, 96 x",
        "lm_head lm_head": "bf16",
    },
    "qwen3-next-80b-a3b-nvfp4": {
        "qkv linear_attn.in_proj_qkvz": "bf16", "qkv self_attn.qkv_proj": "bf16",
        "o linear_attn.out_proj": "nvfp4", "o self_attn.o_proj": "nvfp4",
        "mlp mlp.shared_expert.gate_up_proj": "nvfp4",
        "mlp mlp.shared_expert.down_proj": "nvfp4",
        "router mlp.gate": "bf16", "router mlp.experts": "10 of 16 experts",
        "moe mlp.experts": "nvfp4 16 experts, 192 x", "lm_head lm_head": "bf16",
    },
    SUPER: {
        "qkv mixer.in_proj": "fp8", "qkv mixer.qkv_proj": "fp8", "o mixer.out_proj": "fp8",
        "o mixer.o_proj": "fp8", "mlp mixer.shared_experts.up_proj": "fp8",
        "mlp mixer.fc1_latent_proj": "fp8 64 x 256", "mlp mixer.fc2_latent_proj": "fp8 256 x 64",
        "lm_head lm_head": "bf16",
    },
}  # fmt: skip
"""By slot and role, how the line of the replacement begins."""

NOT_TAKEN: Mapping[str, dict[str, str]] = {
    "nemotron-3-nano-fp8": {
        "router mixer.gate": "float32",
        "mlp mixer.shared_experts.down_proj": "quantizes its input in one kernel with",
    },
    "qwen3-next-80b-a3b-nvfp4": {
        "mlp mlp.shared_expert_gate": "1 x 256: N and K must be multiples of 16",
        # Of 2 times 4 rows here; of 64 in the public model.
        "qkv linear_attn.in_proj_ba": "8 x 256: N and K must be multiples of 16",
    },
    SUPER: {
        "router mixer.gate": "float32",
        "mlp mixer.shared_experts.down_proj": "quantizes its input in one kernel with",
        "router mixer.experts": "among 4 groups of experts",
        "moe mixer.experts": "among 4 groups of experts",
    },
}
"""And why others are left to vLLM."""


@pytest.fixture(scope="module", params=NARROW)
def built(
    request: pytest.FixtureRequest, vllm_world: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, list[BuiltReplacement]]]:
    """What side b of the model's case in benchmarks/ab.py gets."""
    name = str(request.param)
    with narrow_model(name, tmp_path_factory.mktemp("model")) as model:
        yield name, build_all(model, {"b": parse_swaps(CASES[name.partition(" ")[0]].b)})


@contextmanager
def narrow_model(name: str, folder: Path) -> Iterator[Any]:
    """A model of `NARROW`, with random weights as a checkpoint has them."""
    config = deepcopy(MODELS[name.partition(" ")[0]]) | NARROW[name]
    if name.startswith("nemotron"):  # which layers are BF16 goes by their numbers
        config["quantization_config"]["ignore"] = ["lm_head"]
    else:  # attention is in every second one here
        ignored = config["quantization_config"]["ignore"]
        ignored += [f"model.layers.1.self_attn.{part}_proj" for part in "qkv"]
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, before)
        torch.set_default_dtype(torch.bfloat16)
        model = stack.enter_context(vllm_layers.whole_model(config, folder))
        torch.set_default_dtype(torch.float32)
        fill_dummy(model, 1)
        yield model


def named(place: BuiltReplacement) -> str:
    return f"{place.point.slot} {role_of(place.point.name)}"


def test_the_cases_swap_what_these_models_have() -> None:
    assert {CASES[name.partition(" ")[0]].b for name in NARROW} == {HYBRID}


def test_what_can_be_taken_is(built: tuple[str, list[BuiltReplacement]]) -> None:
    name, places = built
    lines = {named(place): place.choices["b"].replacement for place in places}
    live = {role: replacement.line for role, replacement in lines.items() if replacement}
    assert live.keys() == TAKEN[name].keys()
    assert {
        role: line for role, line in live.items() if not line.startswith(TAKEN[name][role])
    } == {}


def test_what_is_not_taken_has_its_reason(built: tuple[str, list[BuiltReplacement]]) -> None:
    name, places = built
    whys = {named(place): place.choices["b"].why for place in places if place.choices["b"].why}
    assert whys.keys() == NOT_TAKEN[name].keys()
    assert {role: why for role, why in whys.items() if NOT_TAKEN[name][role] not in why} == {}


@each_row("tokens", [1, 5])
def test_what_is_taken_computes_its_layer(
    tokens: int, built: tuple[str, list[BuiltReplacement]]
) -> None:
    """Of the weights as the checkpoint has them, in float64."""
    wrong: dict[str, str] = {}
    for place in built[1]:
        if place.choices["b"].live:
            verdict = computed(place, tokens)
            wrong |= {named(place): verdict.detail} if verdict.detail else {}
    assert wrong == {}


def layer_of_experts(name: str, folder: Path) -> Iterator[tuple[Any, BuiltReplacement]]:
    """The layer of experts of a Nemotron, and what side b of its case with `layer` has for it."""
    with narrow_model(name, folder) as model:
        for layer in model.modules():
            if type(layer).__name__ == "NemotronHMoEDecoderLayer":
                weight = layer.mixer.gate.weight  # of a checkpoint in BF16
                weight.data.copy_(weight.bfloat16())
        places = build_all(model, {"b": parse_swaps(CASES["nemotron-3-nano-fp8-layer"].b)})
        (place,) = (place for place in places if place.point.kind == "normed experts")
        yield place.point.module, place


def test_latent_experts_stay_vllm_s(tmp_path: Path) -> None:
    for _, place in layer_of_experts(SUPER, tmp_path):
        assert "fewer features than its residual stream" in place.choices["b"].why


@each_row("tokens", [1, 5])
def test_norm_router_and_experts_of_nemotron_are_one_part(tokens: int, tmp_path: Path) -> None:
    """With the shared expert, twice as wide as the others, as two that every token takes."""
    for layer, place in layer_of_experts("nemotron-3-nano-fp8", tmp_path):
        replacement = place.choices["b"].replacement
        assert replacement is not None, place.choices["b"].why
        assert replacement.line.startswith("fp8 18 experts, 96 x 256")
        x, residual = (make_activations("plain", tokens, 256, seed, "cpu") for seed in (1, 2))
        y, total = replacement.run(x, residual)
        stream = x.double() + residual.double()
        assert torch.equal(total, stream.bfloat16())
        size = (stream.square().mean(-1, keepdim=True) + layer.norm.variance_epsilon).rsqrt()
        normed = (stream * size * layer.norm.weight.double()).bfloat16().double()
        part = read_part(place.point.name, layer, "normed experts")
        assert isinstance(part, NormedExpertsLayer)
        router = part.experts.router
        scores = torch.sigmoid(normed @ layer.mixer.gate.weight.double().T)
        assert router.correction is not None
        chosen = (scores + router.correction.double()).topk(router.top_k).indices
        shares = scores.gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * layer.mixer.routed_scaling_factor
        up, down = decode(part.experts.gate_up), decode(part.experts.down)
        every = torch.relu(torch.einsum("tk,enk->etn", normed, up)).square()
        results = torch.einsum("etn,ekn->tek", every, down)  # of each expert
        expected = (results[torch.arange(tokens)[:, None], chosen] * shares[..., None]).sum(1)
        expected += results[:, router.experts :].sum(1)
        assert float(((y.double() - expected).norm() / expected.norm()).detach()) < 2.0**-7


NORMED: Mapping[str, dict[str, str]] = {
    "nemotron-3-nano-fp8": {"mixer.in_proj": "fp8", "mixer.qkv_proj": "fp8"},
    "qwen3-next-80b-a3b-nvfp4": {
        "linear_attn.in_proj_qkvz": "cannot take a bfloat16 matrix of 1544 x 256",
        "self_attn.qkv_proj": "bf16",
    },
}  # fmt: skip
"""By the role of the first matrix behind a norm, how the part's line or its reason begins."""


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("glm4-moe", {"self_attn.qkv_proj": 4, "mlp.experts": 2}),
        ("minimax-m2", {"self_attn.qkv_proj": 2, "block_sparse_moe.experts": 2}),
    ],
)
def test_parts_of_other_architectures(name: str, paths: dict[str, int], tmp_path: Path) -> None:
    """Of those whose experts vLLM has no kernel for on a CPU, or which other tests run."""
    (row,) = (row for row in ARCHITECTURES if row.name == name)
    with vllm_layers.whole_model(config_of(row, small=True), tmp_path) as model:
        points = [point for point in find_points(model) if point.slot == "layer"]
        assert Counter(role_of(point.name) for point in points) == paths
        for point in points:
            if point.kind == "normed matrix":
                part = read_part(point.name, point.module, "normed matrix")
                assert isinstance(part, NormedLinearLayer)
                assert not part.is_copy
                assert part.norm.weight is not None


@pytest.mark.parametrize("name", NORMED)
def test_norms_and_the_matrices_behind_them_are_parts(name: str, tmp_path: Path) -> None:
    with narrow_model(name, tmp_path) as model:
        places = build_all(model, {"b": parse_swaps("layer=spark_prof!")})
        places = [place for place in places if place.point.kind == "normed matrix"]
        lines: dict[str, str] = {}
        for place in places:
            point, choice = place.point, place.choices["b"]
            role = role_of(point.name)
            if choice.replacement is None:
                lines[role] = choice.why
                continue
            lines[role] = choice.replacement.line.removeprefix("norm and ")
            part = read_part(point.name, point.module, "normed matrix")
            assert isinstance(part, NormedLinearLayer)
            x, residual = (make_activations("plain", 5, 256, seed, "cpu") for seed in (1, 2))
            y, total = choice.replacement.run(x, residual, None)
            expected, stream = normed_linear_oracle(
                x, residual, part.norm.weight, part.norm.epsilon, decode(part.linear.weight), None
            )
            assert judge(y, expected).detail == ""
            assert judge(total, stream).detail == ""
    assert lines.keys() == NORMED[name].keys()
    assert {
        role: line for role, line in lines.items() if not line.startswith(NORMED[name][role])
    } == {}


def computed(place: BuiltReplacement, tokens: int) -> Judgement:
    """What a replacement makes of tokens, beside what its layer is."""
    point, replacement = place.point, place.choices["b"].replacement
    assert replacement is not None
    layer = read_layer(point.name, point.module, point.slot)
    if isinstance(layer, LinearLayer):
        x = make_activations("plain", tokens, layer.weight.shape[1], 1, "cpu")
        return judge(replacement.run(x, None), linear_oracle(x, decode(layer.weight), None))
    assert isinstance(layer, RouterLayer | ExpertsLayer)
    router = layer if isinstance(layer, RouterLayer) else layer.router
    logits = make_logits("plain", tokens, router.experts, torch.float32, "cpu")
    experts, weights = routing_oracle(logits, router)
    if isinstance(layer, RouterLayer):
        shares, chosen = replacement.run(logits)
        assert torch.equal(chosen.long(), experts)
        return judge(shares, weights)
    x = make_activations("plain", tokens, layer.gate_up.shape[-1], 1, "cpu")
    return judge(replacement.run(x, logits), moe_oracle(x, experts, weights, layer))

"""vLLM's own classes as competitors: called as its layers call them, on stand-ins for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from spark_prof.kernels.bench import vllm_humming, vllm_linear
from spark_prof.kernels.bench.field import _peers
from spark_prof.kernels.bench.race import prepared
from spark_prof.kernels.bench.random_weights import decoded, random_experts, random_weight
from spark_prof.kernels.bench.results import ImplementationResult
from spark_prof.kernels.bench.shapes import ExpertsShape, WeightFormat
from spark_prof.kernels.bench.vllm_linear import PEERS, bf16_peers, is_on_gpu, linear_peers
from spark_prof.kernels.formats import Fp8Blocks, Fp8Rows, MxFp4, NvFp4
from spark_prof.kernels.kernel_error import KernelError

LINEAR = "vllm.model_executor.kernels.linear"
FORMS = {"nvfp4": NvFp4, "mxfp4": MxFp4, "fp8": Fp8Rows}


class Kernel:
    """A linear kernel of vLLM's that multiplies by what the test says."""

    supported: tuple[bool, str | None] = (True, None)
    implemented: tuple[bool, str | None] = (True, None)
    is_configured = False
    matrix: torch.Tensor
    seen: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, config: Any, layer_param_names: list[str] | None = None) -> None:
        self.seen.append(("made", (config, layer_param_names)))
        # As an operator of vLLM's that quantizes to FP8.
        assert self.is_configured or not hasattr(config, "activation_quant_key")

    @classmethod
    def is_supported(cls) -> tuple[bool, str | None]:
        return cls.supported

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        return cls.implemented

    def process_weights_after_loading(self, layer: Any) -> None:
        self.seen.append(("processed", dict(layer.named_parameters())))
        assert layer.output_partition_sizes == [layer.output_size_per_partition]

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: None) -> torch.Tensor:
        return x @ self.matrix.T


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[Kernel]:
    """Every class of `PEERS` is this one."""
    found = type("Found", (Kernel,), {"seen": []})

    class Anything(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return SimpleNamespace if name.endswith("Config") else name

    names = {f"{LINEAR}.{peer.module}" for peer in PEERS}
    names |= {f"{LINEAR}.{peer.config.rpartition('.')[0]}" for peer in PEERS}
    for name in (*names, vllm_linear._QUANT_KEYS):
        module = Anything(name)
        for peer in PEERS:
            setattr(module, peer.kernel, found)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(vllm_linear, "is_on_gpu", lambda weight: True)
    settings = ModuleType("vllm.config")
    settings.VllmConfig = dict  # type: ignore[attr-defined]
    settings.set_current_vllm_config = partial(configured, found)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.config", settings)
    return found


@contextmanager
def configured(kernel: type[Kernel], config: Any) -> Iterator[None]:
    """As vLLM's `set_current_vllm_config`."""
    assert config == {}
    kernel.is_configured = True
    yield
    kernel.is_configured = False


@pytest.mark.parametrize("form", FORMS)
def test_humming_multiplies_through_vllms_class(form: Any, kernel: type[Kernel]) -> None:
    weight = random_weight(form, (48, 256), torch.device("cpu"))
    assert isinstance(weight, FORMS[form])
    kernel.matrix = decoded(weight)
    multiply = linear_peers(weight)["vLLM Humming"](weight, 2)
    x = torch.ones((3, 256), dtype=torch.bfloat16)
    for number in range(2):
        assert torch.equal(multiply(x, number), x @ kernel.matrix.T)
    steps = [step for step, _ in kernel.seen]
    assert steps == ["made", "processed"] * 2
    parameters = kernel.seen[1][1]
    wanted = {"weight", "weight_scale"} | ({"weight_global_scale"} if form == "nvfp4" else set())
    assert set(parameters) == wanted
    assert len(parameters["weight"]) == len(parameters["weight_scale"]) == 48
    if form == "fp8":
        config, names = kernel.seen[0][1]
        assert config.weight_quant_key == "kFp8StaticChannelSym"
        assert names[0] == "weight"


def test_blocks_of_fp8_go_to_deep_gemm_and_humming(kernel: type[Kernel]) -> None:
    values = torch.zeros((256, 256)).to(torch.float8_e4m3fn)
    weight = Fp8Blocks(values, torch.ones((2, 2)))
    peers = linear_peers(weight)
    assert list(peers) == ["vLLM Humming", "vLLM DeepGEMM"]
    for make in peers.values():
        make(weight, 1)
    names = [given[1] for step, given in kernel.seen if step == "made"]
    assert [bool(each) for each in names] == [True, False]
    assert not kernel.is_configured
    assert set(kernel.seen[1][1]) == {"weight", "weight_scale_inv"}
    assert kernel.seen[0][1][0].weight_quant_key == "kFp8Static128BlockSym"


@pytest.mark.parametrize(
    ("supported", "implemented", "why"),
    [
        ((False, "Humming is not installed"), (True, None), "Humming is not installed"),
        ((False, None), (True, None), "not supported here"),
        ((True, None), (False, "no groups of 16"), "no groups of 16"),
    ],
)
def test_what_vllm_refuses_is_told_with_its_reason(
    kernel: type[Kernel], supported: Any, implemented: Any, why: str
) -> None:
    kernel.supported, kernel.implemented = supported, implemented
    weight = random_weight("nvfp4", (32, 64), torch.device("cpu"))
    for name, make in linear_peers(weight).items():
        found = prepared(name, lambda make=make: make(weight, 1))
        assert isinstance(found, ImplementationResult)
        assert why in found.failed


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_linear, "is_on_gpu", lambda weight: True)
    monkeypatch.setitem(sys.modules, f"{LINEAR}.nvfp4.humming", None)
    old = ModuleType("old")
    monkeypatch.setitem(sys.modules, f"{LINEAR}.nvfp4.flashinfer", old)
    weight = random_weight("nvfp4", (32, 64), torch.device("cpu"))
    reasons = []
    for make in linear_peers(weight).values():
        with pytest.raises(KernelError) as failure:
            make(weight, 1)
        reasons.append(str(failure.value))
    assert "humming-kernels" in reasons[0]
    assert reasons[1] == "this vLLM has no FlashInferCuteDslNvFp4W4A16LinearKernel; 0.33 has"


def test_everybody_takes_part_and_says_on_a_cpu_that_it_needs_a_gpu() -> None:
    cpu = torch.device("cpu")
    for weight, kind in (
        (random_weight("nvfp4", (32, 64), cpu), "qkv"),
        (random_weight("mxfp4", (32, 64), cpu), "qkv"),
        (random_weight("bf16", (32, 64), cpu), "router"),
    ):
        peers = {**linear_peers(weight)} if kind == "qkv" else {**bf16_peers(weight)}
        assert set(peers) <= set(_peers(kind, weight, gate=True))
        for make in peers.values():
            with pytest.raises(KernelError, match="on GPUs alone"):
                make(weight, 1)
    assert "vLLM ll_fp32w" not in bf16_peers(torch.empty((5120, 64), device="meta"))


def test_products_for_few_tokens_refuse_more_than_vllm_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gemm:
        def is_available(self) -> bool:
            return True

        def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x.to(weight.dtype) @ weight.T

    skinny, router = ModuleType("skinny"), ModuleType("router")
    skinny.shape_dynamic_skinny_gemm = Gemm()  # type: ignore[attr-defined]
    router.LL_FP32W_GEMM_KERNEL = Gemm()  # type: ignore[attr-defined]
    router.is_available = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"{LINEAR}.cute_dsl.skinny_gemm", skinny)
    monkeypatch.setitem(sys.modules, f"{LINEAR}.cute_dsl.ll_fp32w", router)
    monkeypatch.setattr(vllm_linear, "is_on_gpu", lambda weight: True)
    weight = random_weight("bf16", (32, 64), torch.device("cpu"))
    for (_, make), most in zip(bf16_peers(weight).items(), (16, 32), strict=True):
        multiply = make(weight, 1)
        assert multiply(torch.ones((most, 64), dtype=torch.bfloat16), 0).shape == (most, 32)
        with pytest.raises(KernelError, match=f"at most {most} tokens"):
            multiply(torch.ones((most + 1, 64), dtype=torch.bfloat16), 0)


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4"])
def test_hummings_experts_are_made_as_vllms_oracle_makes_them(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    activation = "silu" if form == "nvfp4" else "swiglu"
    shape = ExpertsShape("small", form, 4, 2, 64, 64, activation, form == "mxfp4")
    weights = random_experts(shape, torch.device("cpu"))
    made: list[Any] = []
    contexts: list[str] = []

    @contextmanager
    def override(context: Any) -> Iterator[None]:
        assert context.no_compile_layers == {}
        contexts.append("entered")
        yield
        contexts.append("left")

    class MoE:
        def __init__(self, layer: Any) -> None:
            self.layer = layer

        def apply(self, hidden_states: torch.Tensor, **given: Any) -> torch.Tensor:
            assert given["w1"] is self.layer.w13_weight
            assert given["global_num_experts"] == 4
            # vLLM's has no defaults for these.
            assert given["expert_map"] is None
            assert not given["apply_router_weight_on_input"]
            assert contexts == ["made", "entered"]
            return hidden_states * given["topk_weights"].sum()

    def convert(layer: Any, quant_config: Any) -> None:
        made.append((quant_config, dict(layer.named_parameters())))

    modules: dict[str, Any] = {
        "v1.worker.workspace": SimpleNamespace(
            is_workspace_manager_initialized=lambda: bool(contexts),
            init_workspace_manager=lambda device: contexts.append("made"),
        ),
        "forward_context": SimpleNamespace(
            ForwardContext=SimpleNamespace, override_forward_context=override
        ),
        "quantization.utils.humming": SimpleNamespace(
            select_humming_moe_experts=lambda config, key, activation: key,
            convert_to_humming_moe_kernel_format=convert,
            get_humming_moe_quant_config=lambda layer, **limits: (layer, limits),
            make_humming_moe_kernel=lambda quant, config, experts: MoE(quant[0]),
        ),
        "fused_moe.router.fused_topk_router": SimpleNamespace(
            fused_topk=lambda x, logits, top_k, renormalize: (logits[:, :top_k], None, None)
        ),
        "quantization.utils.quant_utils": SimpleNamespace(kNvfp4Static="nv", kMxfp4Static="mx"),
        "fused_moe.config": SimpleNamespace(
            FusedMoEConfig=SimpleNamespace,
            RoutingMethodType=SimpleNamespace(Renormalize=1),
            FusedMoEParallelConfig=SimpleNamespace(make_no_parallel=lambda: None),
        ),
        "fused_moe.activation": SimpleNamespace(
            MoEActivation=SimpleNamespace(SILU="silu", SWIGLUOAI="swigluoai")
        ),
    }
    monkeypatch.setattr(vllm_humming, "_module", lambda name, below="": modules[name])
    monkeypatch.setattr(vllm_humming, "is_on_gpu", lambda weights: True)
    mix = vllm_humming.humming_experts(weights, 2)
    x, logits = torch.ones((3, 64)), torch.ones((3, 4))
    assert torch.equal(mix(x, logits, 1), x * 6)
    assert contexts == ["made", "entered", "left"]
    assert len(made) == 2
    config, parameters = made[0]
    assert parameters["w13_weight"].shape[:2] == (4, 128)
    if form == "nvfp4":
        assert config["quant_algo"] == "nvfp4"
        assert parameters["w13_weight_scale_2"].shape == (4, 2)
    else:
        assert config["quant_method"] == "gpt_oss_mxfp4"
    modules["quantization.utils.humming"].select_humming_moe_experts = lambda *_: None
    with pytest.raises(KernelError, match="not installed"):
        vllm_humming.humming_experts(weights, 1)


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "fp8", "bf16"])
def test_weights_of_every_form_are_seen_to_lie_on_a_gpu(form: WeightFormat) -> None:
    """A tensor has a method `values`, which is no part of it."""
    weight = random_weight(form, (64, 128), torch.device("cpu"))
    assert not is_on_gpu(weight)
    stored = {} if form == "bf16" else vars(weight)
    with FakeTensorMode(allow_non_fake_inputs=True):
        on_gpu = torch.empty((64, 128), device="cuda")
    name = "packed" if "packed" in stored else "values"
    assert is_on_gpu(SimpleNamespace(**{name: on_gpu}) if stored else on_gpu)  # type: ignore[arg-type]

"""Where the live model's tensors lie: modules made by hand, against their own addresses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from spark_prof.profiler.introspect import describe_tensors  # noqa: E402
from spark_prof.traces.tables import TABLES  # noqa: E402
from tests.rows import each_row  # noqa: E402

nn: Any = torch.nn


def package(name: str, module: str = "vllm.model_executor.layers.objects") -> type:
    """A class of that name in a package of vLLM."""
    return type(name, (SimpleNamespace,), {"__module__": module})


TritonTensor = package("Tensor", "triton_kernels.tensor")


class Linear(nn.Module):  # type: ignore[misc]
    """Tensors become parameters; everything else is an attribute."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def weight(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


def model(*layers: Any, **outside: Any) -> Any:
    """`model.layers.N` with these layers."""
    return Linear(model=Linear(layers=nn.ModuleList(layers)), **outside)


def worker(top: Any, context: dict[str, Any] | None = None, **runner: Any) -> Any:
    compilation = SimpleNamespace(static_forward_context=context or {})
    config = SimpleNamespace(compilation_config=compilation)
    return SimpleNamespace(model_runner=SimpleNamespace(model=top, **runner), vllm_config=config)


def rows(top: Any, context: dict[str, Any] | None = None, **runner: Any) -> Any:
    """The rows by module and name; no two are the same."""
    found = describe_tensors(worker(top, context, **runner))
    for row in found:
        assert list(row) == TABLES["tensors"].schema.names
    by_name = {(row["module"], row["name"]): row for row in found}
    assert len(by_name) == len(found)
    return by_name


def test_a_parameter_has_every_column() -> None:
    qkv = Linear(weight=weight(8, 4))
    (row,) = rows(model(nn.Module(), Linear(self_attn=Linear(qkv_proj=qkv)))).values()
    assert row == {
        "address": qkv.weight.data_ptr(), "bytes": 64, "kind": "weight", "name": "weight",
        "module": "model.layers.1.self_attn.qkv_proj", "type": "Linear", "layer": 1,
        "component": "qkv", "shape": "8x4", "dtype": "bfloat16", "format": "bf16",
    }  # fmt: skip


def test_a_buffer_of_a_module_that_layers_share_is_one_row_of_no_layer() -> None:
    rope = Linear()
    rope.register_buffer("cos_sin_cache", torch.zeros(16, 4))
    layers = [Linear(self_attn=Linear(rotary_emb=rope)) for _ in range(3)]
    ((path, row),) = rows(model(*layers)).items()
    assert path == ("model.layers.0.self_attn.rotary_emb", "cos_sin_cache")
    assert (row["kind"], row["component"], row["bytes"]) == ("buffer", "rope", 256)
    assert row["layer"] == -1


def test_an_embedding_that_is_the_head_too_has_a_row_for_each() -> None:
    embedding = Linear(weight=weight(32, 4))
    found = rows(Linear(model=Linear(embed_tokens=embedding), lm_head=embedding))
    assert {(m, row["component"]) for (m, _), row in found.items()} == {
        ("model.embed_tokens", "embedding"),
        ("lm_head", "lm_head"),
    }
    assert {row["address"] for row in found.values()} == {embedding.weight.data_ptr()}


def test_a_gate_that_its_experts_hold_too_is_one_row() -> None:
    gate = Linear(weight=weight(8, 4))
    found = rows(model(Linear(mlp=Linear(gate=gate, experts=Linear(gate=gate)))))
    assert [(r["module"], r["layer"]) for r in found.values()] == [("model.layers.0.mlp.gate", 0)]


@each_row(
    ("view", "first", "size"),
    [
        (lambda base: base[2:4], 2 * 8, 2 * 8),
        (lambda base: base.t(), 0, 64),
        # Two columns of eight rows: from the first element to the last.
        (lambda base: base[:, 1:3], 1, 7 * 8 + 2),
        (lambda base: base[0:1].expand(4, 8), 0, 8),
    ],
)
def test_a_view_spans_its_own_bytes_only(view: Any, first: int, size: int) -> None:
    base = torch.zeros(8, 8)
    part = view(base)
    (row,) = rows(Linear(lm_head=Linear(weight=nn.Parameter(part, requires_grad=False)))).values()
    assert row["address"] == base.data_ptr() + 4 * first
    assert row["bytes"] == 4 * size


class TestWhatModulesHoldOtherwise:
    def test_experts_of_triton(self) -> None:
        data, scale = torch.zeros(64, 32, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
        experts = Linear(
            quant_method=package("Mxfp4MoEMethod")(),
            w13_weight=TritonTensor(storage=TritonTensor(data=data)),
            w13_precision=TritonTensor(weight_scale=TritonTensor(data=scale)),
        )
        found = rows(model(Linear(mlp=Linear(experts=experts))))
        path = "model.layers.0.mlp.experts"
        weights = found[path, "w13_weight.storage.data"]
        assert (weights["address"], weights["bytes"]) == (data.data_ptr(), 2048)
        assert (weights["kind"], weights["format"]) == ("weight", "mxfp4")
        scales = found[path, "w13_precision.weight_scale.data"]
        assert (scales["kind"], scales["format"]) == ("weight", "scale")

    def test_marlin_s_words_and_workspace(self) -> None:
        layer = Linear(
            quant_method=package("Fp8LinearMethod")(kernel=package("MarlinFP8")()),
            weight=weight(16, 8, dtype=torch.int32),
            workspace=torch.zeros(132, dtype=torch.int32),
        )
        found = rows(model(Linear(mlp=Linear(down_proj=layer))))
        path = "model.layers.0.mlp.down_proj"
        assert found[path, "weight"]["format"] == "fp8"
        assert (found[path, "workspace"]["kind"], found[path, "workspace"]["format"]) == (
            "buffer", "",
        )  # fmt: skip

    @each_row(
        ("attributes", "expected"),
        [
            ({"quant_method": package("GPTQMarlinLinearMethod")(
                quant_config=package("GPTQMarlinConfig")(weight_bits=8))}, "int8"),
            ({"quant_method": package("CompressedTensorsLinearMethod")(),
              "scheme": package("CompressedTensorsWNA16")(
                  quant_type=SimpleNamespace(size_bits=4))}, "int4"),
            ({"quant_method": package("CompressedTensorsWNA16MoEMethod")(num_bits=4)}, "int4"),
            ({"quant_method": package("AWQMoEMethod")()}, "int4"),
            ({"quant_method": package("GPTQLinearMethod")()}, ""),
        ],
    )  # fmt: skip
    def test_the_bits_of_a_packed_weight(self, attributes: dict[str, Any], expected: str) -> None:
        layer = Linear(qweight=weight(4, 4, dtype=torch.int32), **attributes)
        assert rows(Linear(lm_head=layer))["lm_head", "qweight"]["format"] == expected

    def test_absorbed_weights_are_rows_beside_the_whole(self) -> None:
        whole = weight(2 * (4 + 6), 8)
        parts = whole.view(2, 10, 8)
        attention = Linear(W_UK_T=parts[:, :4].permute(0, 1, 2), W_UV=parts[:, 4:].transpose(1, 2))
        layer = Linear(self_attn=Linear(kv_b_proj=Linear(weight=whole), mla_attn=attention))
        found = rows(model(layer))
        path = "model.layers.0.self_attn.mla_attn"
        begin = whole.data_ptr()
        assert found[path, "W_UK_T"]["address"] == begin
        assert found[path, "W_UV"]["address"] == begin + 4 * 8 * 2
        assert found[path, "W_UV"]["bytes"] == (10 + 6) * 8 * 2
        assert {row["format"] for row in found.values()} == {"bf16"}

    def test_lists_and_dictionaries(self) -> None:
        first, second = torch.zeros(8), torch.zeros(9)
        layer = Linear(fused=package("Op")(parts=[first], more={"scale": (second,)}))
        found = rows(Linear(lm_head=layer))
        assert found["lm_head", "fused.parts.0"]["address"] == first.data_ptr()
        assert found["lm_head", "fused.more.scale.0"]["address"] == second.data_ptr()

    def test_what_a_parameter_is_already_counts_once(self) -> None:
        sinks = weight(16)
        layer = Linear(sinks=sinks, attn=Linear(impl=package("Impl")(sinks=sinks.data)))
        found = rows(model(Linear(attn=layer)))
        assert list(found) == [("model.layers.0.attn", "sinks")]

    def test_a_workspace_of_several_layers_is_of_none(self) -> None:
        shared = package("Workspace")(memory=torch.zeros(64))
        layers = [Linear(mlp=Linear(work=shared, weight=weight(2))) for _ in range(2)]
        row = rows(model(*layers))["model.layers.0.mlp", "work.memory"]
        assert (row["layer"], row["kind"]) == (-1, "buffer")

    @each_row(
        "attributes",
        [
            {"other": SimpleNamespace(data=torch.zeros(64))},
            {"config": package("VllmConfig", "vllm.config.vllm")(data=torch.zeros(64))},
            {"holder": package("Holder")(module=Linear(weight=weight(64)))},
            {"kv_cache": torch.zeros(64)},
            {"kind": package("Kind"), "number": 7, "shape": torch.Size([3, 4])},
        ],
    )
    def test_what_is_not_entered(self, attributes: dict[str, Any]) -> None:
        assert rows(Linear(lm_head=Linear(**attributes))) == {}

    def test_objects_that_hold_each_other_and_many(self) -> None:
        first = TritonTensor(data=torch.zeros(8))
        first.second = TritonTensor(first=first)
        wide = TritonTensor(**{f"o{n}": TritonTensor(n=n) for n in range(5000)})
        found = rows(Linear(lm_head=Linear(first=first, wide=wide, list=list(range(10**6)))))
        assert list(found) == [("lm_head", "first.data")]


def test_what_has_no_memory_there() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(8)
    meta = nn.Parameter(torch.zeros(4, device="meta"))
    sparse = torch.zeros(4, 4).to_sparse()
    assert rows(Linear(lm_head=Linear(weight=weight(0), bias=meta, fake=fake, sparse=sparse))) == {}
    device = SimpleNamespace(type="cuda")
    assert rows(Linear(lm_head=Linear(weight=weight(4))), device=device) == {}


class MambaBase: ...


class MambaMixer2(Linear, MambaBase): ...


class TestCaches:
    def test_a_cache_has_the_path_of_its_layer(self) -> None:
        cache = torch.zeros(2, 4, 16, dtype=torch.uint8)
        attention = Linear(kv_cache=cache, kv_cache_dtype="fp8_e4m3")
        top = model(Linear(self_attn=Linear(attn=attention)))
        context = {"model.layers.0.self_attn.attn": attention, "model.layers.0.mlp": Linear()}
        (row,) = rows(top, context).values()
        assert (row["module"], row["name"], row["kind"], row["layer"]) == (
            "model.layers.0.self_attn.attn", "kv_cache", "kv", 0,
        )  # fmt: skip
        assert (row["address"], row["bytes"]) == (cache.data_ptr(), 128)
        assert (row["component"], row["format"]) == ("attention", "fp8")

    @pytest.mark.parametrize("in_list", [False, True])
    def test_states_of_mamba(self, in_list: bool) -> None:
        states = (torch.zeros(3, 4), torch.zeros(3, 2, 2), torch.zeros(7))
        mixer = MambaMixer2(kv_cache=[states] if in_list else states, mamba_type="mamba2")
        top = Linear(backbone=Linear(layers=nn.ModuleList([Linear(mixer=mixer)])))
        found = rows(top, {"backbone.layers.0.mixer": mixer})
        assert {name: row["address"] for (_, name), row in found.items()} == {
            "conv_state": states[0].data_ptr(),
            "ssm_state": states[1].data_ptr(),
            "state.2": states[2].data_ptr(),
        }
        assert {(row["kind"], row["component"]) for row in found.values()} == {("state", "ssm")}

    @pytest.mark.parametrize(
        ("kind", "name"), [("short_conv", "conv_state"), ("linear_attention", "ssm_state")]
    )
    def test_a_single_state(self, kind: str, name: str) -> None:
        layer = MambaMixer2(kv_cache=(torch.zeros(4),), mamba_type=kind)
        assert list(rows(Linear(), {"layers.0.conv": layer})) == [("layers.0.conv", name)]

    def test_the_runner_s_other_caches(self) -> None:
        known, other = torch.zeros(4), torch.zeros(8)
        context = {"layers.0.attn": Linear(kv_cache=known)}
        found = rows(Linear(), context, kv_caches=[known, (other,)])
        row = found["", "kv_caches.1"]
        assert len(found) == 2
        assert (row["kind"], row["layer"], row["address"]) == ("kv", -1, other.data_ptr())


@each_row("name", ["drafter", "speculator"])
def test_the_paths_of_a_drafter_say_so(name: str) -> None:
    block = Linear(self_attn=Linear(o_proj=Linear(weight=weight(4))))
    draft = model(Linear(mtp_block=block))
    target = model(Linear(self_attn=Linear(o_proj=Linear(weight=weight(4)))))
    found = rows(target, **{name: SimpleNamespace(model=draft)})
    assert [(m, row["layer"], row["component"]) for (m, _), row in found.items()] == [
        ("model.layers.0.self_attn.o_proj", 0, "o_proj"),
        ("drafter.model.layers.0.mtp_block.self_attn.o_proj", -1, "o_proj"),
    ]


def test_the_segments_of_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [
        {"address": 1 << 40, "total_size": 1 << 21, "segment_pool_id": (0, 0), "device": 0},
        {"address": 2 << 40, "total_size": 1 << 22, "segment_pool_id": (0, 3), "device": 0},
        {"address": 3 << 40, "total_size": 1 << 23, "segment_pool_id": (0, 0), "device": 1},
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    found = describe_tensors(worker(Linear()))
    assert [(row["address"], row["bytes"], row["kind"]) for row in found] == [
        (1 << 40, 1 << 21, "memory"),
        (2 << 40, 1 << 22, "pool"),
    ]
    assert [list(row) for row in found] == [TABLES["tensors"].schema.names] * 2

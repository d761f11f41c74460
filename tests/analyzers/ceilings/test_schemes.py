"""Quantization configurations of every kind say which module is in which format."""

import pytest

from spark_prof.analyzers.ceilings.checkpoint_weights import weights_of
from spark_prof.analyzers.ceilings.schemes import BYTES, label, schemes_of
from spark_prof.traces.checkpoint import Checkpoint
from tests.checkpoints import FORMATS, as_tensors
from tests.rows import each_row

NAME = "model.layers.0.mlp.up_proj"


def checkpoint(tensors: dict[str, tuple[str, tuple[int, ...]]], **config: object) -> Checkpoint:
    return Checkpoint("", config, {}, as_tensors(tensors))


@each_row(("form", "linear"), FORMATS.values())
@each_row(("rows", "columns"), [(256, 512), (1408, 2048), (4096, 128)])
def test_a_matrix_has_its_parameters_and_its_bytes(form, linear, rows: int, columns: int) -> None:
    tensors = {NAME + part: tensor for part, tensor in linear(rows, columns).items()}
    (weights,) = weights_of(checkpoint(tensors)).weights
    assert (weights.format, weights.component, weights.matrix) == (form, "mlp", True)
    assert weights.parameters == rows * columns
    # Scales of FP8 in blocks, group indices and tables come on top of what the format takes.
    assert 0.95 * BYTES[form] * weights.parameters <= weights.bytes
    assert weights.bytes <= 1.06 * BYTES[form] * weights.parameters + 2000


@each_row(("form", "linear"), FORMATS.values())
def test_experts_by_number_count_as_many_times(form, linear) -> None:
    tensors = {
        f"model.layers.0.mlp.experts.{expert}.up_proj{part}": tensor
        for expert in range(12)
        for part, tensor in linear(256, 512).items()
    }
    (weights,) = weights_of(checkpoint(tensors, num_experts=12, num_experts_per_tok=2)).weights
    assert (weights.component, weights.format) == ("experts", form)
    assert weights.parameters == 12 * 256 * 512


def test_sub_byte_types() -> None:
    tensors = {
        f"{NAME}.weight": ("F4", (256, 512)),
        f"{NAME}.weight_scale": ("F8_E8M0", (256, 16)),
    }
    (weights,) = weights_of(checkpoint(tensors)).weights
    assert (weights.format, weights.parameters) == ("mxfp4", 256 * 512)


def test_eight_bit_words() -> None:
    tensors = {f"{NAME}.qweight": ("I32", (128, 256)), f"{NAME}.scales": ("F16", (4, 256))}
    quantized = checkpoint(tensors)
    quantized = Checkpoint("", {}, {"quant_method": "gptq", "bits": 8}, quantized.tensors)
    (weights,) = weights_of(quantized).weights
    assert (weights.format, weights.parameters) == ("int8", 4 * 128 * 256)


def test_a_tied_embedding_is_read_as_lm_head() -> None:
    tensors = {
        "model.embed_tokens.weight": ("BF16", (1000, 64)),
        "model.embed_tokens_per_layer.weight": ("BF16", (1000, 512)),
    }
    found = weights_of(checkpoint(tensors, vocab_size=1000)).weights
    assert {(w.component, w.parameters) for w in found} == {
        ("lm_head", 64_000),
        ("embedding", 512_000),
    }
    apart = weights_of(checkpoint(tensors, tie_word_embeddings=False)).weights
    assert {w.component for w in apart} == {"embedding"}
    stored = weights_of(checkpoint(tensors | {"lm_head.weight": ("BF16", (1000, 64))})).weights
    assert sorted(w.component for w in stored) == ["embedding", "lm_head"]


UP = "model.layers.3.mlp.up_proj"
Q = "model.layers.3.self_attn.q_proj"
EXPERT = "model.layers.3.mlp.experts.*.up_proj"
HEAD = "lm_head"


def group(bits: int, kind: str, size: int | None = None, **more: object) -> dict[str, object]:
    weights = {"num_bits": bits, "type": kind, "group_size": size}
    return {"targets": ["Linear"], "weights": weights} | more


def compressed(*groups: dict[str, object], **more: object) -> dict[str, object]:
    numbered = {f"group_{i}": g for i, g in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": numbered} | more


CONFIGS = {
    "nothing": ({}, {UP: None}),
    "mxfp4": ({"quant_method": "mxfp4"}, {UP: None, Q: None, EXPERT: "mxfp4"}),
    "fp8": (
        {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", Q]},
        {UP: "fp8", Q: None, HEAD: None},
    ),
    "modelopt": (
        {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*self_attn*"]},
        {UP: "nvfp4", Q: None, HEAD: None},
    ),
    "modelopt with a prefix": (
        {"quant_algo": "FP8", "exclude_modules": ["language_model.model.layers.3.self_attn*"]},
        {UP: "fp8", Q: None},
    ),
    "modelopt mixed": (
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                Q: {"quant_algo": "FP8"},
                "model.layers.3.mlp.experts": {"quant_algo": "NVFP4"},
            },
        },
        {Q: "fp8", EXPERT: "nvfp4", UP: None},
    ),
    "modelopt mixed, expert by expert": (
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.layers.3.mlp.experts.{expert}.up_proj": {"quant_algo": "NVFP4"}
                for expert in range(4000)
            },
        },
        {EXPERT: "nvfp4", UP: None},
    ),
    "compressed nvfp4": (
        compressed(group(4, "float", 16), ignore=["re:.*lm_head", r"re:.*self_attn\.q_proj$"]),
        {UP: "nvfp4", Q: None, HEAD: None},
    ),
    "compressed mxfp4": (compressed(group(4, "float", 32)), {UP: "mxfp4"}),
    "compressed fp8": (compressed(group(8, "float")), {UP: "fp8"}),
    "compressed int4": (compressed(group(4, "int", 128)), {UP: "int4"}),
    "compressed int8": (compressed(group(8, "int")), {UP: "int8"}),
    "compressed, two groups": (
        compressed(
            group(8, "float") | {"targets": [r"re:.*self_attn\.(q)_proj$", "re:.*q_proj$"]},
            group(4, "float", 16),
        ),
        {Q: "fp8", UP: "nvfp4"},
    ),
    "by the layer's number": (
        compressed(group(8, "float"), ignore=[r"re:.*layers\.\d+\.mlp.*"]),
        {UP: None, Q: "fp8"},
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn"]},
        {UP: "int4", Q: None},
    ),
    "gptq of 8 bits": ({"quant_method": "gptq", "bits": 8}, {UP: "int8"}),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {UP: "nf4"}),
}


@each_row(("config", "formats"), CONFIGS.values())
def test_formats_of_modules(config: dict[str, object], formats: dict[str, str | None]) -> None:
    schemes = schemes_of(config)
    assert {path: (schemes.of(path) or (None,))[0] for path in formats} == formats


QKV = "model.layers.3.self_attn.qkv_proj"
ROUTED = "model.layers.3.mlp.experts.routed_experts"
FP4, FP8 = {"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 8, "type": "float"}
SELF = ("model.layers.3.self_attn.q_proj", "model.layers.3.self_attn*", "*self_attn*")


def modelopt(name: str, *ignored: object) -> dict[str, object]:
    return {"quant_method": "modelopt", "quant_algo": name, "ignore": list(ignored)}


@each_row(
    ("config", "path", "scheme"),
    [
        (modelopt("NVFP4"), QKV, "W4A4 nvfp4"),
        (modelopt("W4A16_NVFP4"), QKV, "W4A16 nvfp4"),
        (modelopt("FP8"), QKV, "W8A8 fp8"),
        (modelopt("NVFP4", 1, None, "re:("), QKV, "W4A4 nvfp4"),  # what is no pattern
        *((modelopt("NVFP4", *(name.replace("q_", f"{one}_") for one in "qkv")), path, scheme)
          for name in SELF for path, scheme in ((QKV, "16-bit"), (ROUTED, "W4A4 nvfp4"))),
        (compressed(group(4, "float", 16, input_activations=FP4)), QKV, "W4A4 nvfp4"),
        (compressed(group(4, "float", 16, input_activations=FP8)), QKV, "W4A8 nvfp4"),
        (compressed(group(4, "float", 16)), QKV, "W4A16 nvfp4"),
        (compressed(group(4, "int", 128)), QKV, "W4A16 int4"),
        (compressed(group(8, "float", input_activations=FP8)), QKV, "W8A8 fp8"),
        *(({"quant_method": name, "bits": 4}, QKV, scheme)
          for name, scheme in (("fp8", "W8A8 fp8"), ("awq", "W4A16 int4"), ("gptq", "W4A16 int4"))),
        # They leave lm_head as it is without a word.
        *(({"quant_method": name, "bits": 4}, HEAD, "16-bit") for name in ("fp8", "awq", "gptq")),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True}, HEAD, "W4A16 int4"),
        *(({"quant_method": name}, path, scheme) for name in ("mxfp4", "gpt_oss_mxfp4")
          for path, scheme in ((QKV, "16-bit"), (ROUTED, "W4 mxfp4"))),
        *((CONFIGS["modelopt mixed"][0] | {"quantized_layers": {
            **{f"model.layers.3.self_attn.{name}_proj": {"quant_algo": "FP8"} for name in "qkv"},
            "model.layers.3.mlp.experts.0.gate_proj": {"quant_algo": "W4A16_NVFP4"},
        }}, path, scheme) for path, scheme in ((QKV, "W8A8 fp8"), (ROUTED, "W4A16 nvfp4"))),
        *((strange, QKV, "16-bit") for strange in (
            {}, {"quant_method": None}, {"quant_method": ["x"]}, {"config_groups": {"a": None}},
            {"config_groups": {"a": {"weights": 4}}}, {"config_groups": []},
            {"quantized_layers": {"a": 1}}, {"quant_algo": {}})),
    ],
)  # fmt: skip
def test_what_layers_of_the_engine_are_asked_for(
    config: dict[str, object], path: str, scheme: str
) -> None:
    assert label(*schemes_of(config).of_engine(path)) == scheme


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "quark"},
        {"quant_algo": "W3A3"},
        {"quant_algo": "NVFP4", "exclude_modules": ["re:(a+)+$"]},
    ],
)
def test_what_is_not_understood_is_told(config: dict[str, object]) -> None:
    assert schemes_of(config).lost


@each_row(
    ("config", "found"),
    [
        ({"quantized_layers": {"a": None, "b": {"quant_algo": ["x"]}}}, None),
        ({"ignore": [None, 3, "", "x" * 10_000, ["y"]], "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": ["fp8"], "bits": "four", "exclude_modules": "lm_head"}, None),
        ({"quant_algo": None, "kv_cache_scheme": 3}, None),
    ],
)
def test_of_other_types_only_what_is_understood_counts(
    config: dict[str, object], found: str | None
) -> None:
    assert (schemes_of(config).of(UP) or (None,))[0] == found


def test_hostile_patterns_come_to_an_end() -> None:
    patterns = ["re:" + ".*a" * 90 + "$", "*" * 290 + "c", "*a" * 140, "re:" + "(a|a)*" * 40]
    schemes = schemes_of({"quant_algo": "FP8", "exclude_modules": patterns})
    for layer in range(200):
        assert schemes.of(f"model.layers.{layer}." + "b" * 60) == ("fp8", "fp8")

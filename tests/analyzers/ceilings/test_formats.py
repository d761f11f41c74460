"""Every format is recognised by the types of its tensors, and counted with its scales."""

from spark_prof.analyzers.ceilings.formats import BYTES
from spark_prof.analyzers.ceilings.weights import weights_of
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


def test_an_unknown_type_is_named_as_it_is() -> None:
    (weights,) = weights_of(checkpoint({f"{NAME}.weight": ("F64", (64, 64))})).weights
    assert weights.format == "f64"


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

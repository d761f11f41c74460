"""What is found in a model and what is built for it, by the builders that a swap names."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_prof.errors import CommandError
from spark_prof.kernels.kernel_error import KernelError
from spark_prof.swaps import build, builder_loading
from spark_prof.swaps.build import build_all, find_points, slot_of
from spark_prof.swaps.builder_loading import load_builder
from spark_prof.swaps.builders import BUILDERS
from spark_prof.swaps.layers import Layer, LinearLayer, NormLayer, Replacement
from spark_prof.swaps.swap_settings import Swap, SwapSettings, parse_swaps
from tests.rows import each_row
from tests.swaps.layers import Model, replacing

DATA = Path(__file__).parents[1] / "data"
WITHOUT = {
    *("conv", "conv1d", "dt_proj", "x_proj", "wk_weights_proj", "wq_b"),
    *("gate", "project_in", "project_out"),
}


def _read(name: str, module: Any, slot: str) -> Layer:
    if slot == "lm_head":
        raise KernelError("quantization gptq is not one that is read")
    return LinearLayer(name, slot, module.weight)


@contextmanager
def built_by(builder: Any) -> Iterator[None]:
    """Layers are read from small modules, and every kernel's name stands for one builder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "read_layer", _read)
        patch.setattr(build, "load_builder", lambda _: builder)
        yield


def test_every_slot_of_a_model_is_found() -> None:
    found = [(point.slot, point.name, point.kind) for point in find_points(Model())]
    assert found == [
        ("norm", "layers.0.input_layernorm", "norm"),
        ("qkv", "layers.0.self_attn.qkv_proj", "matrix"),
        ("o", "layers.0.self_attn.o_proj", "matrix"),
        ("router", "layers.0.mlp.gate", "matrix"),
        ("router", "layers.0.mlp.experts", "choice"),
        ("moe", "layers.0.mlp.experts", "experts"),
        ("lm_head", "lm_head", "matrix"),
    ]


@each_row(
    ("path", "type_name", "slot"),
    [
        ("model.layers.0.self_attn.fused_qkv_a_proj", "DeepSeekV2FusedQkvAProjLinear", "qkv"),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa", "ReplicatedLinear", "qkv"),
        ("model.layers.0.self_attn.q_b_proj", "ColumnParallelLinear", "qkv"),
        ("model.layers.0.self_attn.o_proj", "RowParallelLinear", "o"),
        ("model.layers.0.self_attn.indexer.wq_b", "ReplicatedLinear", ""),
        ("backbone.layers.0.mixer.in_proj", "MergedColumnParallelLinear", "qkv"),
        ("backbone.layers.0.mixer.out_proj", "RowParallelLinear", "o"),
        ("backbone.layers.0.mixer.conv1d", "ColumnParallelLinear", ""),
        ("backbone.layers.0.mixer.x_proj", "RowParallelLinear", ""),
        ("backbone.layers.0.mixer.dt_proj", "ColumnParallelLinear", ""),
        ("backbone.layers.2.mixer.fc1_latent_proj", "ReplicatedLinear", "mlp"),
        ("model.layers.0.mamba.mamba.in_proj", "MergedColumnParallelLinear", "qkv"),
        ("model.layers.0.linear_attn.in_proj_qkvz", "MergedColumnParallelLinear", "qkv"),
        ("model.layers.0.linear_attn.in_proj_ba", "MergedColumnParallelLinear", "qkv"),
        ("model.layers.0.linear_attn.out_proj", "RowParallelLinear", "o"),
        ("model.layers.0.short_conv.out_proj", "RowParallelLinear", "o"),
        ("model.layers.1.mlp.shared_experts.gate_up_proj", "MergedColumnParallelLinear", "mlp"),
        ("model.layers.0.shared_mlp.output_linear", "RowParallelLinear", "mlp"),
        ("model.layers.0.mlp.experts.routed_experts", "RoutedExperts", ""),
    ],
)
def test_the_slot_of_a_matrix(path: str, type_name: str, slot: str) -> None:
    assert slot_of(path, type_name) == slot


def test_matrices_of_every_architecture_have_a_slot() -> None:
    """But those that are no plain product of a token, and the embeddings."""
    with (DATA / "module-paths.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["type"].endswith("Linear")]
    without = {
        row["path"].rpartition(".")[2] for row in rows if not slot_of(row["path"], row["type"])
    }
    assert len(rows) > 100
    assert without == WITHOUT


def test_what_mla_absorbs_is_left_alone() -> None:
    model = Model()
    attention = model.layers[0].self_attn
    attention.kv_b_proj = attention.qkv_proj
    del attention.qkv_proj
    assert "layers.0.self_attn.kv_b_proj" in {point.name for point in find_points(model)}
    attention.mla_attn = torch.nn.Module()
    assert "layers.0.self_attn.kv_b_proj" not in {point.name for point in find_points(model)}


@each_row("path", ["visual", "vision_tower", "model.audio_tower", "mm_projector"])
def test_encoders_of_pictures_and_sounds_are_left_alone(path: str) -> None:
    model = torch.nn.Module()
    inner = model
    for part in path.split("."):
        inner.add_module(part, torch.nn.Module())
        inner = inner.get_submodule(part)
    inner.blocks = Model()
    assert list(find_points(model)) == []
    assert list(find_points(inner.blocks))


def test_sides_that_ask_for_the_same_kernel_share_it() -> None:
    built: list[str] = []

    def builder(layer: Layer) -> Replacement:
        built.append(layer.name)
        return replacing(torch.relu)

    qkv, o = Swap("qkv", "mine"), Swap("o", "mine")
    with built_by(builder):
        places = build_all(Model(), {"a": (qkv,), "b": (qkv, o)})
    assert [sorted(place.choices) for place in places] == [["a", "b"], ["b"]]
    assert places[0].choices["a"] is places[0].choices["b"]
    assert built == ["layers.0.self_attn.qkv_proj", "layers.0.self_attn.o_proj"]


@each_row(
    ("reserved", "allocated", "released"),
    [(5 << 30, 4 << 30, 0), ((5 << 30) + 1, 4 << 30, 2), (9 << 30, 1 << 30, 2)],
)
def test_what_packing_took_is_given_back_after_each_layer(
    monkeypatch: pytest.MonkeyPatch, reserved: int, allocated: int, released: int
) -> None:
    """Else 48 layers of experts hold as much again as their packed weights need."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (64 << 30, 128 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocated)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(reserved))
    with built_by(lambda _: replacing(torch.relu)):
        build_all(Model(), {"b": (Swap("qkv", "mine"), Swap("o", "mine"))})
    assert len(calls) == released


@each_row(
    ("slot", "error", "why"),
    [
        ("qkv", KernelError("no row fits"), "no row fits"),
        ("qkv", CommandError("there is no kernel mine"), "there is no kernel mine"),
        ("qkv", ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero"),
        ("qkv", torch.OutOfMemoryError("tried to allocate"), "OutOfMemoryError: tried to allocate"),
        ("qkv", None, "it has none for this layer"),
        ("lm_head", None, "quantization gptq is not one that is read"),
    ],
)
def test_what_cannot_be_built_has_a_reason(slot: str, error: Exception | None, why: str) -> None:
    def builder(_: Layer) -> None:
        if error is not None:
            raise error

    with built_by(builder):
        (place,) = build_all(Model(), {"b": (Swap(slot, "mine"),)})
    guarded = place.choices["b"]
    assert not guarded.live
    assert guarded.why.endswith(why)


@each_row(
    ("text", "says"),
    [
        ("moe", "moe is no swap"),
        ("moe=", "moe= is no swap"),
        ("experts=spark_prof", "there is no slot experts"),
        ("moe=a,moe=b", "moe is given twice"),
    ],
)
def test_bad_swaps_are_one_line(text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        parse_swaps(text)


def test_the_environment_says_one_side_or_both() -> None:
    one = SwapSettings.from_environment({"SPARK_PROF_SWAPS": "moe=spark_prof"})
    assert one is not None
    assert one.names == ("a",)
    assert one.serve
    both = SwapSettings({"a": (), "b": (Swap("o", "mine"),)}, twin=True)
    assert SwapSettings.from_text(both.to_json()) == both
    many = SwapSettings({"a": (), "c1": (Swap("o", "mine"),), "c2": (Swap("moe", "fp8"),)})
    assert SwapSettings.from_text(many.to_json()) == many
    assert not both.serve
    assert both.names == ("a", "b", "a2")
    assert SwapSettings.from_environment({}) is None


@each_row("text", ["{", "{}", '{"b": "o=mine"}', '{"a": "o"}', '{"a": [1]}', "o"])
def test_a_damaged_environment_is_one_line(text: str) -> None:
    with pytest.raises(CommandError):
        SwapSettings.from_text(text)


NORM = NormLayer("model.norm", torch.ones(32, dtype=torch.bfloat16), 1e-6)

GOOD = """
from dataclasses import dataclass

from spark_prof.swaps.layers import Replacement


@dataclass
class Held:
    text: "str"


def build(layer):
    return Replacement(lambda x, residual: x, 0, "kept", line=Held(layer.name).text)


def nothing(layer):
    return None


def wrong(layer):
    return lambda x: x


number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_kernel.py"
    path.write_text(GOOD, encoding="utf-8")
    return path


@each_row("path", ["{}/my_kernel.py", "my_kernel.py"])
def test_a_file(file: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(file.parent)
    built = load_builder(f"{path.format(file.parent)}:build")(NORM)
    assert isinstance(built, Replacement)
    assert built.line == "model.norm"
    assert load_builder(f"{file}:nothing")(NORM) is None
    with pytest.raises(KernelError, match="returned a function; a builder returns"):
        load_builder(f"{file}:wrong")(NORM)


def test_what_lies_beside_a_file_can_be_imported_later(tmp_path: Path) -> None:
    (tmp_path / "beside_my_kernel.py").write_text("LINE = 'beside'\n")
    path = tmp_path / "late.py"
    path.write_text(
        "from spark_prof.swaps.layers import Replacement\n"
        "def build(layer):\n"
        "    from beside_my_kernel import LINE\n"
        "    return Replacement(None, 0, 'kept', line=LINE)\n"
    )
    built = load_builder(f"{path}:build")(NORM)
    assert built is not None
    assert built.line == "beside"


@each_row(
    ("content", "said"),
    [
        ("def build(:\n", "cannot be loaded: SyntaxError"),
        ("import nowhere_at_all\n", "cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "cannot be loaded: SystemExit"),
        ("\0\1\2", "cannot be loaded"),
        ("x = 1\n", "has no function build"),
        ("build = 7\n", "is not a function; it is of type int"),
        ("raise ValueError('first\\nsecond')\n", "ValueError: first$"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(content)
    before = set(sys.modules)
    with pytest.raises(CommandError, match=said) as caught:
        load_builder(f"{path}:build")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    if "cannot be loaded" in said:
        assert not {name for name in sys.modules if name.startswith("spark_prof_own_")} - before


def test_two_files_of_one_name(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / file.name
    other.parent.mkdir()
    other.write_text(GOOD.replace("layer.name", "'the other'"), encoding="utf-8")
    lines = [load_builder(f"{path}:build")(NORM).line for path in (file, other)]  # type: ignore[union-attr]
    assert lines == ["model.norm", "the other"]


@each_row(
    ("kernel", "said"),
    [
        ("nowhere/my.py:build", "is no file"),
        ("x" * 5000 + ".py:build", "is no file"),
        ("a\0b.py:build", "is no file"),
        ("my.py", "name the function too, such as my.py:build"),
        ("spark_pro", "did you mean spark_prof"),
        ("qqqq", "give spark_prof, spark_prof!, mxfp4, fp8 or FILE.py:FUNCTION"),
        (":", "there is no kernel :"),
        ("/:build", "there is no kernel /:build"),
    ],
)
def test_what_is_not_there(kernel: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        load_builder(kernel)


@pytest.fixture
def installed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on the path with entry points of the group."""
    metadata = tmp_path / "their_kernels-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-kernels\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        f"[{builder_loading.GROUP}]\nfast = my_kernel:build\nbroken = my_kernel:nowhere\n"
        "spark_prof = my_kernel:build\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    load_builder.cache_clear()


@pytest.mark.usefixtures("installed")
def test_entry_points() -> None:
    built = load_builder("fast")(NORM)
    assert built is not None
    assert built.line == "model.norm"
    assert load_builder("spark_prof") is BUILDERS["spark_prof"], "none takes a name of the package"
    with pytest.raises(CommandError, match=r"broken: my_kernel:nowhere .* cannot be loaded"):
        load_builder("broken")

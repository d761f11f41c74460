"""Model folders are read without their weights, and damage costs a line, not the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_prof.traces.checkpoint import Checkpoint, read_checkpoint
from tests.checkpoints import header, write_model
from tests.rows import each_row

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}
TENSORS = {
    "model.layers.0.self_attn.q_proj.weight": ("BF16", (64, 64)),
    "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (128, 64)),
    "model.layers.0.mlp.up_proj.weight_scale": ("F32", ()),
    "model.norm.weight": ("F32", (64,)),
}


def written(folder: Path, text: bytes | str, declared: int | None = None) -> Checkpoint:
    """A folder whose only file has that header, of that length or of another."""
    text = text if isinstance(text, bytes) else text.encode()
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    length = len(text) if declared is None else declared
    (folder / "model.safetensors").write_bytes(length.to_bytes(8, "little") + text)
    return read_checkpoint(folder)


def test_tensors_are_as_their_header_has_them(tmp_path: Path) -> None:
    found = read_checkpoint(write_model(tmp_path / "m", CONFIG, TENSORS))
    assert {t.name: (t.dtype, t.shape) for t in found.tensors} == TENSORS
    assert [t.bytes for t in found.tensors] == [8192, 8192, 4, 256]
    assert found.config == CONFIG
    assert found.lost == ()


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG, {})
    names = list(TENSORS)
    shards = {f"model-0000{i}-of-00003.safetensors": names[i::3] for i in range(3)}
    for shard, held in shards.items():
        (tmp_path / shard).write_bytes(
            header({name: TENSORS[name] for name in held}) + b"x" * 20000
        )
    (tmp_path / "consolidated.safetensors").write_bytes(header(TENSORS))
    index = {name: shard for shard, held in shards.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    found = read_checkpoint(tmp_path)
    assert {t.name for t in found.tensors} == set(TENSORS)
    assert found.lost == ()
    (tmp_path / "model-00001-of-00003.safetensors").unlink()
    found = read_checkpoint(tmp_path)
    assert {t.name for t in found.tensors} == {names[0], names[2], names[3]}
    assert any("1 of 3 files are not there" in line for line in found.lost)


def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    write_model(tmp_path / "other", None, TENSORS)
    write_model(tmp_path / "m", CONFIG, {})
    weight_map = {"a": "../other/model.safetensors", "b": "/etc/passwd", "c": ""}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map})
    )
    assert read_checkpoint(tmp_path / "m").tensors == ()


def test_the_cache_of_hugging_face(tmp_path: Path) -> None:
    write_model(tmp_path / "models--a--b" / "snapshots" / "0123abcd", CONFIG, TENSORS)
    assert len(read_checkpoint(tmp_path / "models--a--b").tensors) == 4


def test_mistral_s_own_configuration(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('{"dim": 4096}')
    found = read_checkpoint(tmp_path)
    assert (found.config, found.lost) == ({"dim": 4096}, ())


def test_quantization_stands_in_either_file(tmp_path: Path) -> None:
    write_model(tmp_path / "a", CONFIG | {"quantization_config": {"quant_method": "fp8"}}, {})
    assert read_checkpoint(tmp_path / "a").quantization == {"quant_method": "fp8"}
    write_model(tmp_path / "b", CONFIG, {})
    (tmp_path / "b" / "hf_quant_config.json").write_text(
        json.dumps({"producer": {}, "quantization": {"quant_algo": "NVFP4"}})
    )
    assert read_checkpoint(tmp_path / "b").quantization == {"quant_algo": "NVFP4"}


def entry(dtype: object = "BF16", shape: object = (2, 2), offsets: object = (0, 8)) -> object:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HEADERS: dict[str, object] = {
    "a negative size": entry(shape=[-2, -2]),
    "a fraction": entry(shape=[2.5, 2]),
    "many dimensions": entry(shape=[1] * 100_000),
    "a size beyond all": entry(shape=[1 << 62, 1 << 62], offsets=[0, 1 << 62]),
    "a number beyond all": entry(shape=[10**40]),
    "offsets the wrong way": entry(offsets=[8, 0]),
    "negative offsets": entry(offsets=[-8, 0]),
    "no offsets": entry(offsets=[]),
    "offsets of another size": entry(offsets=[0, 9]),
    "a type that is none": entry(dtype=7),
    "no tensor": "x",
}


@each_row("bad", HEADERS.values())
def test_a_tensor_that_cannot_be_costs_itself(bad: object, tmp_path: Path) -> None:
    found = written(tmp_path, json.dumps({"bad": bad, "good": entry()}) + " " * 99)
    assert [t.name for t in found.tensors] == ["good"]
    assert any("as none can be" in said for said in found.lost)


def test_tensors_that_share_data(tmp_path: Path) -> None:
    found = written(tmp_path, json.dumps({"a": entry(), "b": entry(offsets=[4, 12])}))
    assert len(found.tensors) == 2
    assert any("share their data" in line for line in found.lost)


def test_an_unknown_type_counts_as_it_is_stored(tmp_path: Path) -> None:
    found = written(tmp_path, json.dumps({"a": entry("F3_E1M1", [64], [0, 24])}))
    assert (found.tensors[0].dtype, found.tensors[0].bytes) == ("F3_E1M1", 24)


WHOLE_FILES: dict[str, tuple[bytes, int | None, str]] = {
    "nothing": (b"", 0, "no JSON object"),
    "no JSON": (b"\x00" * 64, None, "no JSON object"),
    "a list": (b"[1, 2]", None, "no JSON object"),
    "too deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "no JSON object"),
    "no UTF-8": (b'{"\xff\xfe": 1}', None, "no JSON object"),
    "a length beyond all": (b"{}", (1 << 64) - 1, "no safetensors file"),
    "a length beyond the file": (b'{"a"', 4096, "cut short in its header"),
}


@each_row(("text", "declared", "line"), WHOLE_FILES.values())
def test_a_file_that_is_none_costs_itself(
    text: bytes, declared: int | None, line: str, tmp_path: Path
) -> None:
    found = written(tmp_path, text, declared)
    assert found.tensors == ()
    assert len(found.lost) == 1
    assert line in found.lost[0]
    assert found.config == CONFIG


@each_row("name", ["config.json", "hf_quant_config.json"])
@each_row("text", [b"", b"{", b"\xff\xfe{}", b"[" * 100_000, b"null", b'{"a": NaN}'])
def test_a_configuration_that_is_none_costs_itself(name: str, text: bytes, tmp_path: Path) -> None:
    write_model(tmp_path, CONFIG, TENSORS)
    (tmp_path / name).write_bytes(text)
    found = read_checkpoint(tmp_path)
    assert len(found.tensors) == 4
    assert any(name in line for line in found.lost)


def test_a_configuration_is_read_up_to_its_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (write_model(tmp_path, CONFIG, TENSORS) / "config.json").stat().st_size
    for largest, config in ((size, CONFIG), (size - 1, {})):
        monkeypatch.setattr("spark_prof.traces.checkpoint._LARGEST_JSON", largest)
        found = read_checkpoint(tmp_path)
        assert found.config == config
        assert any("config.json is larger" in line for line in found.lost) is not bool(config)

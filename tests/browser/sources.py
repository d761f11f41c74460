"""What is opened in the tests: recordings of this project, other people's traces, made ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_prof.importers.sources import import_files
from tests.analyzers.ranks.bundles import bundle, parallel
from tests.analyzers.ranks.play import Play
from tests.browser.hostile import write_hostile
from tests.fuzz.test_handmade import hostile_kineto

_DATA = Path(__file__).resolve().parents[1] / "data"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"

OWN = {
    "graphs": _DATA / "h100-gpt-oss-20b-mxfp4-graphs",
    "eager": _DATA / "h100-gpt-oss-20b-mxfp4-eager",
    "nvfp4": _DATA / "code-h100" / "qwen3-30b-a3b-nvfp4",
    "mxfp4": _DATA / "code-h100" / "gpt-oss-20b-mxfp4",
    "dense-nvfp4": _DATA / "code-h100" / "dense-nvfp4",
    "dense-awq": _DATA / "code-h100" / "dense-awq",
    "kineto": _DATA / "kineto" / "gpt-oss-eager.json.gz",
    "cpu": _DATA / "benchmarks" / "vllm-serve-bundle",
    "summed": _DATA / "proton" / "tree.hatchet",
    "counted": _DATA / "ncu-h100" / "nvfp4.csv",
    "ab": _DATA / "ab-h100" / "result.json",
    "ab-cpu": _DATA / "ab-cpu" / "result.json",
}
"""Recordings of this project, by the name that the tests call them."""

_SHARED = {
    "b200": "kineto/b200_vllm_eager_tp8_rank0.json.gz",
    "vllm-graphs": "kineto/h100_vllm026_gptoss20b_mxfp4_graph_bs1.json.gz",
    "owlv2": "kineto/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "resnet": "kineto/odd/kineto_tbplugin_resnet50_2021.pt.trace.json.gz",
    "triton": "kineto/odd/triton_example.json.gz",
    "two-processes": "nsys/h100_2gpu_1s.sqlite",
    "flash": "nsys/mfu_2gpu_before.sqlite",
    "mock": "nsys/mock.sqlite",
    "sums": "nsys_csv_rtx5090/rtx5090_deepseek_ocr_decode_cuda_gpu_kern_sum.csv",
}
"""Other people's traces, which are not part of the project."""

_RANKS = 8


def own(folder: Path) -> Mapping[str, Path]:
    """This project's recordings; in the folder a run of eight ranks and hostile recordings."""
    play = Play(ranks=_RANKS, slow={step: step % 3 for step in range(0, 40, 2)})
    hosts = {rank: {"host": "a", "boot": "1"} for rank in range(_RANKS)}
    bundle(folder / "ranks", play, hosts, parallel=parallel(tensor=_RANKS))
    trace = folder / "<img src=x onerror=window.fuzzed=1> $fuzzed$ :smile: **fuzzed**.json"
    trace.write_bytes(hostile_kineto())
    made = {
        "ranks": folder / "ranks",
        "hostile": write_hostile(OWN["graphs"], folder / "<fuzzed> `fuzzed` _fuzzed_"),
        "hostile-trace": trace,
    }
    return OWN | made


def shared(folder: Path) -> Mapping[str, Path]:
    """Other people's traces; the eight ranks among them as one bundle."""
    ranks = sorted((SHARED / "kineto" / "dlrm_v100_8rank").glob("*.gz"))
    import_files(ranks, folder / "dlrm")
    return {name: SHARED / path for name, path in _SHARED.items()} | {"dlrm": folder / "dlrm"}

"""`spark-prof kernels replay`: its files run by themselves, here on the emulator."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from spark_prof.kernels.registry import KERNELS, find
from tests.cli.conftest import Refuses, Run
from tests.emulator.compiler import compiler
from tests.rows import each_row

COMMAND = "kernels replay"
ROOT = Path(__file__).parents[2]
GPT = ROOT / "tests" / "data" / "h100-gpt-oss-20b-mxfp4-graphs"
SMALL = {"matrix": "48x160", "experts": "4x2x64x64", "choice": "8x2"}
REPLAYED = [
    kernel.name
    for kernel in KERNELS
    if kernel.layer in SMALL and (kernel.layer != "experts" or "mxfp4" in kernel.formats)
]
ON_CPU = ("o-w4a16", "o-fp8", "router-w16a16", "moe-w4a16", "router-topk")


def played(path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a file, run as Python runs it."""
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return int(ended.value.code or 0)


@each_row("name", REPLAYED)
def test_every_kernel_has_a_file_that_stands_alone(name: str, run: Run, tmp_path: Path) -> None:
    (kernel,) = find(name)
    path = tmp_path / "alone.py"
    code, out, err = run(name, "--shape", SMALL[kernel.layer], "-o", path)
    text = path.read_text()
    assert (code, out, err) == (0, "", f"spark-prof: wrote {path}\n")
    compile(text, "alone.py", "exec")
    assert not [place for place in (ROOT, tmp_path, Path.home()) if str(place) in text]
    assert "tests" not in text
    assert f"{name} by itself" in text
    entries = "|".join(dict.fromkeys(each.entry for each in kernel.function("codes")()))
    wanted = f"ncu --set full --kernel-name 'regex:^({entries})$' python alone.py --once"
    assert wanted in text


@pytest.mark.slow
@each_row("name", ON_CPU)
def test_a_file_times_its_kernel_and_checks_it(
    name: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if compiler() is None:
        pytest.skip("no C++ compiler: kernels do not run on the CPU")
    (kernel,) = find(name)
    path = tmp_path / "alone.py"
    run(name, "--shape", SMALL[kernel.layer], "--tokens", 2, "-o", path)
    assert played(path, monkeypatch, "--device", "cpu", "--once") == 0
    assert played(path, monkeypatch, "--device", "cpu") == 0
    assert "us a call [" in capsys.readouterr().out
    # A kernel that does nothing is wrong.
    module = sys.modules[kernel.module]
    monkeypatch.setattr(module, "launch", lambda *_, **__: None)
    assert played(path, monkeypatch, "--device", "cpu") == 1
    assert "wrong" in capsys.readouterr().out


def test_a_file_without_its_gpu_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run("o-w4a16", "--shape", "48x160", "-o", "alone.py")
    assert played(tmp_path / "alone.py", monkeypatch) == 2
    assert capsys.readouterr().err == "there is no GPU here that PyTorch can use\n"


def test_a_shape_that_the_kernel_does_not_take_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("o-w4a16", "--shape", "17x4097", "-o", "alone.py")
    assert played(tmp_path / "alone.py", monkeypatch, "--device", "cpu", "--once") == 2
    error = capsys.readouterr().err
    assert "x has the shape (1, 4097)" in error
    assert error.count("\n") == 1


def test_of_a_recording_it_has_the_shape_and_what_ran(run: Run, tmp_path: Path) -> None:
    assert run("moe-w4a16", "--from", GPT, "-o", "moe.py")[0] == 0
    text = (tmp_path / "moe.py").read_text()
    assert "The recording took 54.43 us a call for it: _matmul_ogs" in text
    assert "experts=32, top_k=4, hidden=2880, intermediate=2880" in text
    assert "TOKENS = 1\n" in text
    assert run("router-topk", "--from", GPT, "--tokens", 4, "-o", "topk.py")[0] == 0
    text = (tmp_path / "topk.py").read_text()
    assert "EXPERTS, TOP_K = 32, 4\nTOKENS = 4\n" in text
    assert "The recording" not in text


def test_it_runs_the_configuration_that_was_measured_on_the_recorded_gpu(
    run: Run, tmp_path: Path
) -> None:
    """The package's measurements on an H100 are not the default."""
    assert run("router-w16a16", "--from", GPT, "-o", "router.py")[0] == 0
    text = (tmp_path / "router.py").read_text()
    measured = "warps=12, split=12, depth=2, x_ahead=1, min_blocks=1, blocks=0"
    assert f"CONFIG = LinearConfig({measured})" in text


def test_bad_input_is_one_line(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("my work")
    for words, says in (
        (["nosuch", "-o", "a.py"], "known are"),
        (["o-w4a16", "--shape", "48x160", "-o", "mine.py"], "mine.py exists"),
        (["o-w4a16", "--shape", "48x160", "-o", "no/a.py"], "does not exist"),
        (["o-w4a16", "--shape", "48", "-o", "a.py"], "it is ROWSxCOLUMNS"),
        (["o-w4a16", "--shape", "48x0", "-o", "a.py"], "it is ROWSxCOLUMNS"),
        (["o-w4a16", "--shape", "48xx", "-o", "a.py"], "it is ROWSxCOLUMNS"),
        (["moe-w4a16", "--shape", "4x8x64x64", "-o", "a.py"], "a token cannot take 8"),
        (["router-topk", "--shape", "4x8", "-o", "a.py"], "a token cannot take 8"),
        (["moe-w4a16", "--shape", "48x160", "-o", "a.py"], "EXPERTSxTOP_KxHIDDENxINNER"),
        (["o-w4a16", "--shape", "48x160", "--weights", "fp8", "-o", "a.py"], "not fp8"),
        (["mlp-w4a16", "--model", "Llama-3", "-o", "a.py"], "choose --shape 4096x14336"),
        (["qkv-w4a16", "--from", GPT, "-o", "a.py"], "its layers are qkv in bf16"),
        (["o-w4a16", "--model", "Llama", "--shape", "1x1", "-o", "a.py"], "for o-w4a16 of 1x1"),
    ):
        refuses(words, says)
    assert (tmp_path / "mine.py").read_text() == "my work"

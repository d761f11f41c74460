"""python -m demo where vLLM is missing or fails; tests/engine records for real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demo import __main__ as demo
from tests.support import Recorded, eager_decode, engine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    engines = {0: [engine(0, -50, 950), engine(1, 960, 1950)]}
    Recorded({0: [eager_decode()]}, engines).assemble(tmp_path / "capture")
    for name, path in {"ROOT": "", "OUTPUT": "demo-output", "CAPTURE": "capture"}.items():
        monkeypatch.setattr(demo, name, tmp_path / path)
    monkeypatch.setenv("PYTHONPATH", str(Path(demo.__file__).parents[1]))
    (tmp_path / "demo-output").mkdir()
    (tmp_path / "demo-output" / "old").write_text("of the last demo")
    return tmp_path


@pytest.mark.slow
def test_without_vllm_the_capture_is_shown(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    assert demo.main() == 0
    out = capfd.readouterr().out
    assert "vLLM is not installed" in out
    assert "flash_fwd" in out
    assert out.splitlines()[-1].endswith("demo-output/report.html")
    assert [path.name for path in (root / "demo-output").iterdir()] == ["report.html"]


@pytest.mark.slow
def test_a_failed_recording_shows_vllm_s_last_words(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda _: True)
    monkeypatch.setattr(demo, "gpu_memory", lambda: None)
    script = "print('spark-prof: starting'); print('vLLM says no'); raise SystemExit(1)"
    monkeypatch.setattr(
        demo,
        "run_logged",
        lambda _command, environment, log, run=demo.run_logged: run(
            [sys.executable, "-c", script], environment, log
        ),
    )
    assert demo.main() == 1
    out, errors = capfd.readouterr()
    assert "spark-prof: starting" in out
    assert "vLLM says no" not in out
    assert "vLLM says no" in errors
    assert (root / "demo-output" / "vllm.log").read_text() == "vLLM says no\n"
    assert "the recording failed" in out
    assert "flash_fwd" in out


@pytest.mark.parametrize(
    ("said", "found"),
    [("40960, 81920\n40000, 81920\n", (40.0, 80.0)), ("", None), ("[N/A], [N/A]\n", "shared")],
)
def test_memory_of_the_gpu(monkeypatch: pytest.MonkeyPatch, said: str, found: object) -> None:
    ended = subprocess.CompletedProcess([], 0, stdout=said)
    monkeypatch.setattr(demo.subprocess, "run", lambda *_, **__: ended)
    memory = demo.gpu_memory()
    if found == "shared":
        assert memory is not None
        assert 0 < memory[0] <= memory[1]
    else:
        assert memory == found


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert demo.gpu_memory() is None

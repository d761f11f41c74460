"""scripts/vllm_sources on what is broken or made to harm: one line and exit code 2."""

from __future__ import annotations

import os
import random
import zipfile
from pathlib import Path

import pytest

from scripts.vllm_sources import sources
from scripts.vllm_sources.__main__ import main
from tests.rows import each_row
from tests.scripts.vllm_wheels import FILES, folder, sdist, wheel

pytestmark = pytest.mark.usefixtures("small")


def _refused(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    out = path.parent / "tables"
    code = main([str(path), "--anew", "--folder", str(out)])
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.startswith("vllm_sources: ")
    assert error.count("\n") == 1
    assert error.rstrip("\n").isprintable()
    assert not out.exists()
    for word in words:
        assert word in error
    return error


@each_row(
    ("file", "text", "words"),
    [
        ("vllm/envs.py", "def (:\n", "vllm/envs.py: line 1: this Python cannot read it"),
        ("vllm/envs.py", "x = '\x00'", "this Python cannot read it"),
        ("vllm/envs.py", "x = " + "(" * 5000 + ")" * 5000, "this Python cannot read it"),
        ("vllm/envs.py", "x = " + "-" * 50_000 + "1", "cannot read it"),
        ("vllm/envs.py", "environment_variables = {}", "no list of"),
        ("vllm/envs.py", "variables = {}", "no environment_variables in vllm.envs"),
        ("vllm/engine/arg_utils.py", "", "no options in vllm.engine.arg_utils"),
        ("vllm/config/vllm.py", "", "no list of architectures"),
        ("vllm/v1/worker.py", "logger.x('\n", "vllm/v1/worker.py: line 1"),
        ("vllm/v1/worker.py", "# coding: nonsense\nlogger = 1", "cannot read it"),
    ],
)
def test_broken_python(
    file: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {file: text}
    if words == "no list of":
        changes["vllm/config/vllm.py"] = "A = 1"
    _refused(capsys, wheel(tmp_path, "0.40.0", changes), words)


def test_what_is_no_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, tmp_path / "gone.whl", "neither a wheel")
    (tmp_path / "text.whl").write_text("hello")
    _refused(capsys, tmp_path / "text.whl", "neither a wheel")
    (tmp_path / "empty").mkdir()
    _refused(capsys, tmp_path / "empty", "it has no vllm/envs.py")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    _refused(capsys, tmp_path / "other.whl", "it is no vLLM")
    with zipfile.ZipFile(tmp_path / "unknown.whl", "w") as archive:
        archive.writestr("vllm/envs.py", FILES["vllm/envs.py"])
    _refused(capsys, tmp_path / "unknown.whl", "does not say which version")
    os.mkfifo(tmp_path / "pipe.whl")
    _refused(capsys, tmp_path / "pipe.whl", "neither a wheel")


@pytest.mark.parametrize("seed", range(60))
def test_a_wheel_with_bytes_that_are_wrong(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused in one line, or the wrong bytes do no harm."""
    make = sdist if seed % 2 else wheel
    path = make(tmp_path, "0.40.0")
    dice = random.Random(seed)
    content = bytearray(path.read_bytes())
    if dice.random() < 0.3:
        del content[dice.randrange(len(content)) :]
    else:
        for _ in range(dice.randrange(1, 30)):
            content[dice.randrange(len(content))] = dice.randrange(256)
    path.write_bytes(content)
    code = main([str(path), "--anew", "--folder", str(tmp_path / "tables")])
    error = capsys.readouterr().err
    assert code in (0, 2)
    assert error.count("\n") == (code == 2), error


def test_a_zip_bomb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path, "0.40.0", {"vllm/bomb.py": "#" * 9_000_000})
    assert path.stat().st_size < 100_000
    _refused(capsys, path, "vllm/bomb.py is larger than 8 MB")
    monkeypatch.setattr(sources, "MOST_BYTES", 100_000)
    many = {f"vllm/b{number}.py": "#" * 20_000 for number in range(20)}
    _refused(capsys, wheel(tmp_path, "0.40.0", many), "MB of Python")
    monkeypatch.setattr(sources, "MOST_FILES", 5)
    _refused(capsys, wheel(tmp_path, "0.40.0"), "more than 5 files")
    monkeypatch.setattr(sources, "MOST_MEMBERS", 5)
    _refused(capsys, wheel(tmp_path, "0.40.0"), "more than 5 members")


def test_names_that_leave_the_package_and_links_are_not_followed(tmp_path: Path) -> None:
    path = wheel(tmp_path, "0.40.0", {"vllm/../../evil.py": "x", "/vllm/absolute.py": "x"})
    assert set(sources.open_sources(path).texts) == set(FILES)
    root = folder(tmp_path, "0.41.0")
    (root / "vllm" / "loop").symlink_to(root / "vllm")
    (root / "vllm" / "passwd.py").symlink_to("/etc/passwd")
    assert set(sources.open_sources(root).texts) == set(FILES)


def test_nothing_of_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')\n"
    changes = {name: code + text for name, text in FILES.items()}
    main([str(wheel(tmp_path, "0.40.0", changes)), "--anew", "--folder", str(tmp_path / "t")])
    assert not mark.exists()


def test_tables_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tables"
    out.mkdir()
    for text in ("", "[]", '{"versions": 3}', '{"versions": ["0.1"], "rows": [[]]}', "\xff"):
        (out / "vllm_options.json").write_text(text, "latin-1")
        assert main([str(wheel(tmp_path, "0.40.0")), "--folder", str(out)]) == 2
        assert "write it --anew" in capsys.readouterr().err


def test_a_check_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wheel(tmp_path, "0.40.0")
    assert main(["--check", str(path), "--folder", str(tmp_path / "none")]) == 2
    assert "no tables to compare with" in capsys.readouterr().err

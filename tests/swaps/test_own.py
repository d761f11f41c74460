"""Builders by name: the package's, a file's, an entry point's."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from spark_prof.errors import CommandError
from spark_prof.kernels.errors import KernelError
from spark_prof.swaps import own
from spark_prof.swaps.builtin import BUILDERS
from spark_prof.swaps.layers import NormLayer, Replacement
from spark_prof.swaps.own import find_builder, load_builder
from spark_prof.swaps.spec import Swap
from tests.rows import each_row

KERNELS = Path(__file__).parent / "kernels"
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


def test_names_of_the_package(tmp_path: Path) -> None:
    for name, builder in BUILDERS.items():
        assert find_builder(Swap("qkv", name)) is builder


def test_a_file(file: Path) -> None:
    built = load_builder(f"{file}:build")(NORM)
    assert isinstance(built, Replacement)
    assert built.line == "model.norm"
    assert load_builder(f"{file}:nothing")(NORM) is None


def test_a_relative_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_builder("my_kernel.py:build")(NORM) is not None


def test_a_file_runs_once(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(
        "import pathlib\n"
        "with open(pathlib.Path(__file__).with_suffix('.log'), 'a') as log: log.write('x')\n"
        "def build(layer): return None\n"
    )
    for _ in range(3):
        find_builder(Swap("norm", f"{path}:build"))(NORM)
    assert path.with_suffix(".log").read_text() == "x"


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


def test_an_answer_of_another_type(file: Path) -> None:
    with pytest.raises(KernelError, match="returned a function; a builder returns"):
        load_builder(f"{file}:wrong")(NORM)


@each_row(
    ("content", "said"),
    [
        ("def build(:\n", "cannot be loaded: SyntaxError"),
        ("import nowhere_at_all\n", "cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "cannot be loaded: SystemExit"),
        ("x = 1\n", "has no function build"),
        ("build = 7\n", "is not a function; it is of type int"),
        ("raise ValueError('first\\nsecond')\n", "ValueError: first$"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(content)
    with pytest.raises(CommandError, match=said) as caught:
        load_builder(f"{path}:build")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_nothing_stays_of_a_file_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text("1 / 0\n")
    before = set(sys.modules)
    with pytest.raises(CommandError, match="ZeroDivisionError"):
        load_builder(f"{path}:build")
    assert set(sys.modules) == before


def test_two_files_of_one_name(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / file.name
    other.parent.mkdir()
    other.write_text(GOOD.replace("layer.name", "'the other'"), encoding="utf-8")
    lines = [load_builder(f"{path}:build")(NORM).line for path in (file, other)]  # type: ignore[union-attr]
    assert lines == ["model.norm", "the other"]


def test_a_file_of_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "bytes.py"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(CommandError, match="cannot be loaded"):
        load_builder(f"{path}:build")


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


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "my.py").mkdir()
    with pytest.raises(CommandError, match="is no file"):
        load_builder(f"{tmp_path / 'my.py'}:build")


@pytest.fixture
def installed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on the path with entry points of the group."""
    metadata = tmp_path / "their_kernels-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-kernels\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        f"[{own.GROUP}]\nfast = my_kernel:build\nbroken = my_kernel:nowhere\n"
        "spark_prof = my_kernel:build\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    load_builder.cache_clear()


@pytest.mark.usefixtures("installed")
def test_an_entry_point() -> None:
    built = load_builder("fast")(NORM)
    assert built is not None
    assert built.line == "model.norm"


@pytest.mark.usefixtures("installed")
def test_an_entry_point_that_leads_nowhere() -> None:
    with pytest.raises(CommandError, match=r"broken: my_kernel:nowhere .* cannot be loaded"):
        load_builder("broken")


@pytest.mark.usefixtures("installed")
def test_an_entry_point_takes_no_name_of_the_package() -> None:
    assert load_builder("spark_prof") is BUILDERS["spark_prof"]


def test_the_group_is_what_importlib_takes() -> None:
    assert EntryPoint("fast", "my_kernel:build", own.GROUP).group == "spark_prof.kernels"


@each_row("path", sorted(KERNELS.glob("*.py")))
def test_the_kernels_of_the_tests_load(path: Path) -> None:
    if path.stem != "changed":
        assert callable(load_builder(f"{path}:build"))

"""The registry: every entry names what exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_prof.errors import CommandError
from spark_prof.kernels.registry import KERNELS, ReplacementKernel, find
from tests.rows import each_row


@pytest.mark.slow
def test_listing_needs_no_torch() -> None:
    code = (
        "import sys; from spark_prof.dashboards.replacement_kernels import render_kernels as r; "
        "from spark_prof.dashboards.section import Layout as L; "
        "from spark_prof.kernels.registry import KERNELS; r(KERNELS, (), L('text')); "
        "r(KERNELS, (), L('json')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@each_row("kernel", KERNELS)
def test_what_an_entry_names_exists(kernel: ReplacementKernel) -> None:
    pytest.importorskip("torch")
    from pkgutil import resolve_name

    from spark_prof.kernels.runtime.code import SOURCES, KernelCode
    from spark_prof.kernels.tuning import TunedShape

    assert callable(resolve_name(kernel.operation))
    assert callable(resolve_name(kernel.reference))
    assert callable(kernel.candidate().builder)
    if kernel.tuned_as:
        work = TunedShape(kernel.tuned_as, kernel.formats[0], 512, 512, 1)
        assert kernel.function("config_for")(work, 132)
    codes = kernel.function("codes")()
    assert codes
    for code in codes:
        assert isinstance(code, KernelCode)
        assert f"{code.entry}(" in (SOURCES / code.source).read_text(encoding="utf-8")


def test_finding() -> None:
    assert find(None) == KERNELS
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    assert [kernel.name for kernel in find("o-w4a16")] == ["o-w4a16"]


@pytest.mark.parametrize(
    ("name", "hint"), [("qkv-w4a61", "did you mean qkv-w4a16?"), ("", "known are"), ("zz", "known")]
)
def test_an_unknown_name_is_told(name: str, hint: str) -> None:
    with pytest.raises(CommandError, match=rf"(?s){hint.replace('?', '.')}") as caught:
        find(name)
    assert caught.value.exit_code == 2

"""scripts/vllm_sources on small wheels: what it reads, and which changes it tells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts.vllm_sources import names, tables
from scripts.vllm_sources.__main__ import main
from scripts.vllm_sources.architectures import breakable_architectures
from scripts.vllm_sources.log_formats import log_formats
from scripts.vllm_sources.options import engine_options
from scripts.vllm_sources.sources import Sources, open_sources
from scripts.vllm_sources.variables import choices_of_variables, environment_variables
from tests.rows import each_row
from tests.scripts.vllm_wheels import (
    ARGUMENTS,
    CONFIG,
    ENVS,
    FILES,
    KERNEL,
    NAMES,
    WORKER,
    sdist,
    wheel,
)
from tests.scripts.vllm_wheels import folder as unpacked

REAL = Path(os.environ.get("SPARK_PROF_VLLM_SOURCES", "/nowhere"))


def _sources(changes: dict[str, str] | None = None) -> Sources:
    return Sources(
        "1.0", {path: text.encode() for path, text in {**FILES, **(changes or {})}.items()}
    )


def test_a_wheel_an_sdist_and_a_folder_are_read_alike(tmp_path: Path) -> None:
    found = [
        open_sources(path)
        for path in (
            wheel(tmp_path, "0.40.0"), sdist(tmp_path, "0.40.0"), unpacked(tmp_path, "0.40.0"),
            unpacked(tmp_path, "0.40.0") / "vllm",
        )
    ]  # fmt: skip
    assert {it.version for it in found} == {"0.40.0"}
    assert all(dict(it.texts) == dict(found[0].texts) for it in found)
    assert set(found[0].texts) == set(FILES)


def test_options_and_their_values() -> None:
    assert engine_options(_sources()) == {
        ("--moe-backend", ""), ("--moe-backend", "auto"), ("--moe-backend", "triton"),
        ("--moe-backend", "marlin"), ("--monokernel", ""), ("--compilation-config", ""),
        ("--compilation-config.cudagraph_mode", ""),
        ("--compilation-config.cudagraph_mode", "NONE"),
        ("--compilation-config.cudagraph_mode", "FULL"), ("--compilation-config.pass_config", ""),
        ("--compilation-config.pass_config.fuse_norm_quant", ""), ("--level", ""),
        ("--level", "a"), ("--level", "b"), ("--device", ""),
    }  # fmt: skip
    dropped = ARGUMENTS + '    kernel_kwargs["moe_backend"]["choices"].remove("marlin")\n'
    assert ("--moe-backend", "marlin") not in engine_options(
        _sources({"vllm/engine/arg_utils.py": dropped})
    )


def test_variables() -> None:
    assert environment_variables(_sources()) == {
        ("VLLM_A", "listed"), ("VLLM_KERNEL", "listed"), ("CUDA_HOME", "listed"),
        ("VLLM_UNLISTED", "read"),
    }  # fmt: skip
    assert choices_of_variables(_sources()) == {("VLLM_KERNEL", "cuda"), ("VLLM_KERNEL", "triton")}


def test_breakable_graphs_of_new_and_old_versions() -> None:
    assert breakable_architectures(_sources()) == {"OneForCausalLM"}
    old = (
        'if "VLLM_USE_BREAKABLE_CUDAGRAPH" not in os.environ and any(\n'
        '    a in ("TwoForCausalLM", "TwoMTP") for a in architectures):\n    pass\n'
    )
    assert breakable_architectures(_sources({"vllm/config/vllm.py": old})) == {
        "TwoForCausalLM", "TwoMTP",
    }  # fmt: skip


@each_row(
    ("call", "lines"),
    [
        ('logger.warning("No kernel for %s", x)', {("WARNING", "No kernel for %s")}),
        ('self.logger.error("Lost %d" " of it", x)', {("ERROR", "Lost %d of it")}),
        ('logger.warning_once(f"Slow {x:.2f} s")', {("WARNING", "Slow %s s")}),
        ('logger.exception("Bad {} {a}".format(x, a=1))', {("ERROR", "Bad %s %s")}),
        ('logger.warning("A %s" % x)', {("WARNING", "A %s")}),
        ('logger.warning("A " + name)', {("WARNING", "A %s")}),
        ('m = "Late kernel"\nlogger.info(m)', {("INFO", "Late kernel")}),
        ('logger.warning("One" if x else "Two")', {("WARNING", "One"), ("WARNING", "Two")}),
        ('logger.info("Hello %s", x)', set()),  # about nothing that is looked for
        ('logger.debug("kernel")', set()),
        ('warnings.warn("kernel")', set()),
        ("logger.warning(make(x))", set()),
    ],
)
def test_lines_of_the_log(call: str, lines: set[tuple[str, str]]) -> None:
    found = log_formats(_sources({"vllm/v1/worker.py": call}))
    assert {row[:2] for row in found} == lines
    assert {row[2] for row in found} <= {"v1/worker.py"}


@each_row(
    ("name", "there"),
    [
        ("vllm.v1.worker:", True), ("vllm.v1.gone:", False), ("vllm.v1.worker:Worker", True),
        ("vllm.v1.worker:Worker.execute_model", True),  # of its base class
        ("vllm.v1.worker:Worker.runner", True), ("vllm.v1.worker:Worker.limit", True),
        ("vllm.v1.worker:Worker.gone", False), ("vllm.v1.worker:Worker(check)", True),
        ("vllm.v1.worker:Worker(gone)", False), ("vllm.config:KernelConfig.monokernel", True),
        ("vllm.config:CompilationConfig", True), ("vllm.*:*.execute_model", True),
        ("vllm.config.*:*.execute_model", False), ("no name", False),
    ],
)  # fmt: skip
def test_names(name: str, there: bool) -> None:
    assert names.has_name(_sources(), name) is there


def test_ranges() -> None:
    versions = ["0.24.0", "0.25.0", "0.26.0", "0.27.0"]
    assert tables.spans(versions, versions) == "0.24.0-"
    assert tables.spans(["0.24.0", "0.26.0", "0.27.0"], versions) == "0.24.0 0.26.0-"
    assert tables.spans(["0.24.0", "0.25.0"], versions) == "0.24.0-0.25.0"
    assert tables.spans([], versions) == ""


def test_a_version_is_added_and_a_table_read_back(tmp_path: Path, small: None) -> None:
    out = tmp_path / "tables"
    first, second = wheel(tmp_path, "0.40.0"), wheel(tmp_path, "0.41.0", {
        "vllm/config/kernel.py": KERNEL.replace('"marlin"', '"humming"'),
    })  # fmt: skip
    assert main([str(first), "--folder", str(out)]) == 0
    assert main([str(second), "--folder", str(out)]) == 0
    rows = json.loads((out / "vllm_options.json").read_bytes())["rows"]
    assert ["--moe-backend", "marlin", "0.40.0"] in rows
    assert ["--moe-backend", "humming", "0.41.0-"] in rows
    assert ["--moe-backend", "triton", "0.40.0-"] in rows
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    both = tmp_path / "both"
    assert main([str(second), str(first), "--anew", "--folder", str(both)]) == 0
    assert {path.name: path.read_bytes() for path in both.iterdir()} == before


def _checked(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str],
             version: str = "0.41.0") -> tuple[int, str]:  # fmt: skip
    out = tmp_path / "tables"
    assert main([str(wheel(tmp_path, "0.40.0")), "--folder", str(out)]) == 0
    capsys.readouterr()
    code = main(["--check", str(wheel(tmp_path, version, changes)), "--folder", str(out)])
    return code, capsys.readouterr().out


@each_row(
    ("file", "text", "code", "told"),
    [
        ("vllm/config/kernel.py", KERNEL.replace('"marlin"', '"marlin", "zebra"'), 0,
         ["new backend without a row in rules/backends.py CHOICES (1):", "--moe-backend zebra"]),
        ("vllm/config/kernel.py", KERNEL.replace('"marlin"', '"marlin", "humming"'), 0,
         ["new value of an option (1):", "--moe-backend humming"]),
        ("vllm/config/kernel.py", KERNEL.replace(', "marlin"', ""), 0,
         ["gone: value of an option (1):", "--moe-backend marlin"]),
        ("vllm/envs.py", ENVS.replace('"VLLM_A": ', '"VLLM_MOE_B": '), 0,
         ["new environment variable that speaks of kernels (1):", "VLLM_MOE_B",
          "gone: environment variable without a row in rules/environment.py that says what instead",
          "VLLM_A"]),
        ("vllm/v1/worker.py", WORKER.replace("def execute_model", "def run_model"), 1,
         ["gone, and spark-prof reaches into it (1):", NAMES[0]]),
        ("vllm/v1/worker.py", WORKER + 'logger.error("Kernel %s broke", x)\n', 0,
         ["new ERROR line without a rule (1):", "v1/worker.py: Kernel %s broke"]),
        ("vllm/v1/worker.py", WORKER + 'logger.info("GPU KV cache size: %s tokens", x)\n', 0,
         ["0 news"]),  # a rule takes it
        ("vllm/config/vllm.py", CONFIG.replace("One", "Two"), 0,
         ["new architecture with breakable CUDA graphs (1):", "TwoForCausalLM",
          "architecture without breakable CUDA graphs (1):", "OneForCausalLM"]),
        ("vllm/engine/arg_utils.py", ARGUMENTS.replace("--level", "--depth"), 0,
         ["new option (1):", "--depth", "gone: option (1):", "--level"]),
    ],
)  # fmt: skip
def test_a_planted_change_is_told(
    file: str, text: str, code: int, told: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], small: None,
) -> None:  # fmt: skip
    assert text != FILES[file]
    found, out = _checked(tmp_path, capsys, {file: text})
    assert found == code
    assert "vLLM 0.41.0 is not in the tables" in out
    for words in told:
        assert words in out


def test_nothing_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str], small: None) -> None:
    assert "0 news" in _checked(tmp_path, capsys, {})[1]
    code, out = _checked(tmp_path, capsys, {}, "0.40.0")
    assert (code, out.split(";")[0]) == (0, "vLLM 0.40.0: 0 differences from the tables")


def test_a_version_that_differs_from_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small: None
) -> None:
    code, out = _checked(
        tmp_path, capsys, {"vllm/v1/worker.py": WORKER.replace("limit", "bound")}, "0.40.0"
    )
    assert code == 1
    assert "1 differences" in out
    assert "only in the table names (1):" in out


def test_a_name_that_was_never_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    _checked(tmp_path, capsys, {})
    for module in ("facts", "check", "__main__"):
        monkeypatch.setattr(
            f"scripts.vllm_sources.{module}.names_looked_for", lambda: (*NAMES, "vllm.new:")
        )
    out = tmp_path / "tables"
    assert main([str(wheel(tmp_path, "0.41.0")), "--folder", str(out)]) == 2
    assert "1 names, such as vllm.new:, were never looked for in 0.40.0" in capsys.readouterr().err


@pytest.mark.skipif(not REAL.is_dir(), reason="SPARK_PROF_VLLM_SOURCES names no folder of sources")
def test_real_sources_differ_in_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(str(path) for path in REAL.iterdir())
    assert main(["--check", *paths]) == 0
    assert capsys.readouterr().out.count(" 0 differences") == len(paths)

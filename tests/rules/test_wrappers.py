"""Each wrapper's example in front of a program: the program is found, and the options are its."""

from __future__ import annotations

import shlex

from spark_prof.profiler.program import find_program
from spark_prof.rules.wrappers import WRAPPERS, Wrapper
from tests.rows import each_row


@each_row("wrapper", WRAPPERS)
def test_the_program_behind_it_is_found(wrapper: Wrapper, monkeypatch, tmp_path) -> None:
    for name in (wrapper.name, "vllm", "nice"):
        (tmp_path / name).write_bytes(b"\x7fELF")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wrapper.example.split()[0] == wrapper.name
    for behind in ("vllm serve m -n 5", "nice -n 5 vllm serve m"):
        argv = shlex.split(f"{wrapper.example} {behind}")
        found = find_program(argv)
        assert argv[found.index :][:2] == ["vllm", "serve"]
        assert found.name == "vllm"
        assert not found.cleared_by
        assert not found.unknown


def test_they_are_in_order() -> None:
    names = [wrapper.name for wrapper in WRAPPERS]
    assert names == sorted(set(names))

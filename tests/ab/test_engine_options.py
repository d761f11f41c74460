"""vLLM's options in a command line, against vLLM's own parser."""

from __future__ import annotations

import pytest

from spark_prof.ab.engine_options import set_options, with_options

_CC = "--compilation-config"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("m --moe_backend=marlin", {"--moe-backend": "marlin"}),
        (
            "m --moe-backend marlin --enforce-eager",
            {"--moe-backend": "marlin", "--enforce-eager": ""},
        ),
        ("-O1 -tp 2", {"--optimization-level": "1", "--tensor-parallel-size": "2"}),
        ("-O 3", {"--optimization-level": "3"}),
        ("--cudagraph-capture-sizes 1 2", {"--cudagraph-capture-sizes": "1 2"}),
        ("--seed -1", {"--seed": "-1"}),
        ("-cc.mode=0", {f"{_CC}.mode": "0"}),
        ('-cc {"mode":0,"p":{"q":true}}', {f"{_CC}.mode": "0", f"{_CC}.p.q": "true"}),
        (f"{_CC}.custom_ops+=all", {f"{_CC}.custom_ops": "all"}),
        (f"{_CC} {{broken", {_CC: "{broken"}),
    ],
)
def test_what_a_command_sets(words: str, found: dict[str, str]) -> None:
    assert set_options(words.split()) == found


@pytest.mark.slow
def test_fields_and_json_of_one_configuration_are_both_kept() -> None:
    parser = pytest.importorskip("vllm.utils.argparse_utils").FlexibleArgumentParser()
    arguments = pytest.importorskip("vllm.engine.arg_utils").EngineArgs
    parser = arguments.add_cli_args(parser)
    json = '{"cudagraph_capture_sizes": [1, 2], "pass_config": {}}'
    given = ["--seed", "3", "-cc", json, "--block-size", "16"]
    side = ["--compilation-config.pass_config.fuse_norm_quant=true"]
    lost = parser.parse_args([*given, *side]).compilation_config
    assert not lost.cudagraph_capture_sizes, "vLLM keeps both by itself: with_options can go"
    kept = parser.parse_args(list(with_options(given, side)))
    assert kept.compilation_config.cudagraph_capture_sizes == [1, 2]
    assert "fuse_norm_quant" in str(kept.compilation_config.pass_config)
    assert (kept.seed, kept.block_size) == (3, 16)


def test_what_needs_no_change_stays() -> None:
    given = ("m", "-cc", '{"mode": 0}', "--seed", "1")
    assert with_options(given, ("--moe-backend", "marlin")) == (*given, "--moe-backend", "marlin")
    assert with_options((), ("--a.b=1",)) == ("--a.b=1",)


@pytest.mark.parametrize(
    ("given", "option", "kept"),
    [
        ("m --enforce-eager --seed 1", "--no-enforce-eager", "m --seed 1 --no-enforce-eager"),
        ("m --no_async_scheduling", "--async-scheduling", "m --async-scheduling"),
        ("m --no-cache x", "--cache", "m --no-cache x --cache"),  # has a value: no switch
    ],
)
def test_a_switch_that_is_turned_back_is_left_out(given: str, option: str, kept: str) -> None:
    assert with_options(given.split(), (option,)) == tuple(kept.split())

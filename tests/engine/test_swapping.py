"""Kernels swapped in a live engine, right and faulty ones: no answer is lost or changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.architecture_table import ARCHITECTURES, config_of
from spark_prof import load
from spark_prof.analyzers.attribution.placement import place_kernels
from spark_prof.rules.components import role_of
from spark_prof.swaps.swap_settings import SWAPS_ENVIRONMENT, SwapSettings, parse_swaps
from tests.engine.conftest import ONE_PROCESS, ROOT, Recorder
from tests.engine.swapped_engine import PROMPTS, TOKENS

KERNELS = ROOT / "tests/swaps/kernels/faulty.py"


@dataclass(frozen=True)
class Answered:
    """What one engine said: its answers by side, its swaps, why it took no new weights, its log."""

    answers: dict[str, list[list[int]]]
    ranks: list[dict[str, Any]]
    reloaded: str
    log: str

    @property
    def told(self) -> dict[str, Any]:
        """What the first rank said of its swaps."""
        return self.ranks[0]

    @property
    def swaps(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {(row["slot"], row["name"]): row for row in self.told["swaps"]}

    def states(self, slot: str) -> set[str]:
        return {row["state"] for row in self.told["swaps"] if row["slot"] == slot}

    def lines(self, text: str) -> list[str]:
        return [line for line in self.log.splitlines() if text in line]


def _kernel(slot: str, name: str) -> str:
    return f"{slot}={KERNELS}:{name}"


def _answer(
    environment: dict[str, str], model: Path, mode: str, swaps: str, *sides: str, ranks: int = 1
) -> Any:
    program = [sys.executable, "-m", "tests.engine.swapped_engine"]
    command = [*program, str(model), mode, str(ranks), *sides]
    done = subprocess.run(
        command, env=environment | {SWAPS_ENVIRONMENT: swaps},
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("SWAPPED ")]
    assert lines, done.stdout[-3000:] + done.stderr[-30000:]
    found = json.loads(lines[0].removeprefix("SWAPPED "))
    log = done.stdout.replace(lines[0], "") + done.stderr
    return Answered(found["answers"], found["swaps"], found["reloaded"], log)


def _same_begin(answered: Answered) -> float:
    """The share of the first four tokens of all answers that both sides give.

    Rounding at other places changes a token of random weights sooner or later, and with it all that
    follow; which one differs by processor. A wrong kernel leaves one in thousands the same.
    """
    pairs = zip(answered.answers["a"], answered.answers["b"], strict=True)
    same = [one == other for a, b in pairs for one, other in zip(a[:4], b[:4], strict=True)]
    return sum(same) / len(same)


@pytest.fixture(scope="session")
def compiled(models: dict[str, Path], environment: dict[str, str]) -> Answered:
    """An engine with torch.compile and both sides: side b has right and faulty kernels."""
    faulty = ",".join(
        (
            _kernel("norm", "right"),
            _kernel("o", "throws_later"),
            _kernel("qkv", "throws_at_call"),
            _kernel("lm_head", "hangs"),
            _kernel("moe", "throws_at_build"),
            _kernel("router", "wrong_dtype"),
        )
    )
    sides = {"a": (), "b": parse_swaps(faulty)}
    settings = SwapSettings(sides, twin=True).to_json()
    return _answer(environment, models["tiny-moe"], "compiled", settings, "a", "b", "a2")


@pytest.fixture(scope="session")
def applied(models: dict[str, Path], environment: dict[str, str]) -> Answered:
    """An eager engine with the environment that `ab --apply` prints."""
    swaps = (_kernel("o", "right"), _kernel("norm", "doubled_scale"), "lm_head=spark_prof")
    return _answer(environment | ONE_PROCESS, models["tiny-moe"], "eager", ",".join(swaps), "a")


def test_every_request_is_answered_whatever_fails(compiled: Answered) -> None:
    for answers in compiled.answers.values():
        assert [len(tokens) for tokens in answers] == [TOKENS] * len(PROMPTS)


def test_right_kernels_and_fallbacks_say_what_vllm_says(compiled: Answered) -> None:
    assert compiled.answers["a2"] == compiled.answers["a"]
    assert len({tuple(tokens) for tokens in compiled.answers["a"]}) == len(PROMPTS)
    assert _same_begin(compiled) >= 0.5


def test_a_kernel_that_fails_while_serving_is_off_with_one_line(compiled: Answered) -> None:
    states = [row["state"] for row in compiled.told["swaps"] if row["slot"] == "o"]
    assert states == ["fell back"] * 3
    (line,) = compiled.lines("made to fail while it serves")
    assert ".self_attn.o_proj (o=" in line


def test_a_kernel_that_fails_on_trial_is_off_with_one_line(compiled: Answered) -> None:
    assert compiled.states("qkv") == {"fell back"}
    (line,) = compiled.lines("made to fail when it is called")
    assert "vLLM's own kernel runs in 3 layers" in line
    assert compiled.states("moe") == {"fell back"}


def test_a_kernel_that_hangs_for_ten_seconds_is_waited_for(compiled: Answered) -> None:
    assert compiled.states("lm_head") == {"live"}
    assert compiled.told["seconds"]["trial"] > 10


def test_norms_run_on_their_side_only(compiled: Answered) -> None:
    calls = compiled.swaps["norm", "model.layers.1.input_layernorm"]["calls"]
    assert set(calls) == {"trial", "b"}
    assert calls["b"] >= TOKENS


def test_layers_are_compared_alone(compiled: Answered) -> None:
    errors = [row["layer_error"] for row in compiled.told["swaps"] if row["slot"] == "norm"]
    assert errors
    assert all(error["relative_l2"] < 2**-8 for error in errors)


def test_nothing_of_this_package_failed(compiled: Answered, applied: Answered) -> None:
    assert compiled.told["fault"] == applied.told["fault"] == ""


def test_what_apply_prints_swaps_kernels_for_good(applied: Answered) -> None:
    assert applied.states("o") == {"live"}
    calls = applied.swaps["o", "model.layers.0.self_attn.o_proj"]["calls"]
    assert calls["a"] >= TOKENS
    assert len(applied.lines("runs in 3 of 3 layers (side a)")) == 1


def test_what_is_not_supported_falls_back_with_one_line(applied: Answered) -> None:
    assert applied.states("lm_head") == {"fell back"}
    assert len(applied.lines("lm_head=spark_prof: vLLM's own kernel runs")) == 1
    assert [len(tokens) for tokens in applied.answers["a"]] == [TOKENS] * len(PROMPTS)


def test_new_weights_are_refused_while_kernels_hold_the_old_ones(applied: Answered) -> None:
    assert "kernels that spark-prof swapped in hold copies" in applied.reloaded
    assert SWAPS_ENVIRONMENT in applied.reloaded


def test_a_kernel_that_is_wrong_on_trial_does_not_serve(applied: Answered) -> None:
    assert applied.states("norm") == {"fell back"}
    assert len(applied.lines("from vLLM's result")) == 1
    assert "100.00%" in applied.lines("from vLLM's result")[0]


TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
"""Two ranks of tensor parallelism, a core each."""


@pytest.mark.slow
def test_a_compiled_layer_of_parts_says_what_vllm_says(
    models: dict[str, Path], environment: dict[str, str]
) -> None:
    """Norm and qkv, and norm and experts are replaced; attention, which a CPU has none for, not.

    Of two ranks; one rank runs norm and experts of another model below.
    """
    sides = {"a": (), "b": parse_swaps(f"{_kernel('layer', 'right')},{_kernel('o', 'right')}")}
    settings = SwapSettings(sides).to_json()
    environment = environment | TWO_RANKS
    answered = _answer(environment, models["tiny-moe"], "compiled", settings, "a", "b", ranks=2)
    assert _same_begin(answered) >= 0.5
    assert len(answered.ranks) == 2
    for rank in answered.ranks:
        assert rank["fault"] == ""
        states = {row["name"].rsplit(".", 1)[1]: row["state"] for row in rank["swaps"]}
        live = dict.fromkeys(("qkv_proj", "experts", "o_proj"), "live")
        assert states == {**live, "attn": "fell back"}
        for row in rank["swaps"]:
            assert row["state"] != "live" or row["calls"]["b"] >= TOKENS - 1


@pytest.mark.slow
def test_what_fails_on_one_rank_falls_back_on_both(
    models: dict[str, Path], environment: dict[str, str]
) -> None:
    swaps = ",".join(_kernel(slot, "throws_on_the_second_rank") for slot in ("layer", "lm_head"))
    settings = SwapSettings({"a": (), "b": parse_swaps(swaps)}).to_json()
    answered = _answer(
        environment | TWO_RANKS, models["tiny-moe"], "eager", settings, "a", "b", ranks=2
    )
    assert answered.answers["a"] == answered.answers["b"]
    for number, rank in enumerate(answered.ranks):
        assert {row["state"] for row in rank["swaps"]} == {"fell back"}
        (why,) = {row["why"] for row in rank["swaps"] if not row["name"].endswith(".attn")}
        own = "RuntimeError: made to fail on a rank"
        assert why == (own if number else f"vLLM's own kernel runs on rank 1: {own}")


PARTS_BESIDE_ATTENTION = {
    "deepseek-v2": {"self_attn.kv_a_proj_with_mqa": 4, "mlp.experts": 2},
    "nemotron-h": {"mixer.in_proj": 2, "mixer.qkv_proj": 1, "mixer.up_proj": 2},
    "qwen3-next": {"linear_attn.in_proj_qkvz": 2, "self_attn.qkv_proj": 2, "mlp.experts": 4},
    "glm4-moe-lite": {"self_attn.fused_qkv_a_proj": 4, "mlp.experts": 2},
    "mixtral": {"self_attn.qkv_proj": 2, "block_sparse_moe.experts": 2},
    "qwen2-moe": {"self_attn.qkv_proj": 2, "mlp.experts": 2},
}
"""Which parts of layers are replaced but for attention, which a CPU has none for."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS_BESIDE_ATTENTION)
def test_norms_beside_another_attention_say_what_vllm_says(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """With the matrices behind them: two of MLA's and of a gated delta net; and with experts."""
    (row,) = (row for row in ARCHITECTURES if row.name == name)
    config = config_of(row, small=True) | {"hybrid_override_pattern": "M*-M-"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sides = {"a": (), "b": parse_swaps(_kernel("layer", "right"))}
    settings = SwapSettings(sides).to_json()
    mode = "compiled" if name == "deepseek-v2" else "eager"
    answered = _answer(environment | ONE_PROCESS, tmp_path, mode, settings, "a", "b")
    assert _same_begin(answered) >= 0.5
    assert answered.told["fault"] == ""
    swaps = [swap for swap in answered.told["swaps"] if not swap["name"].endswith(".attn")]
    for swap in swaps:
        assert swap["state"] == "live", swap
        assert swap["calls"]["b"] >= TOKENS - 1
    assert Counter(role_of(swap["name"]) for swap in swaps) == PARTS_BESIDE_ATTENTION[name]


@pytest.mark.slow
def test_a_recorded_engine_runs_what_is_swapped(record: Recorder, tmp_path: Path) -> None:
    """Kernels count to the matrices, vLLM's own too in a prefill that a kernel does not take."""
    (row,) = (row for row in ARCHITECTURES if row.name == "deepseek-v2")
    (tmp_path / "config.json").write_text(json.dumps(config_of(row, small=True)))
    sizes = ["--batch", "1", "--prompt", "20", "--tokens", "6", "--rounds", "1"]
    engine = ["--engine", json.dumps({"max_num_batched_tokens": 256})]
    command = [sys.executable, "-m", "demo.workload", str(tmp_path), *sizes, *engine]
    swaps = {SWAPS_ENVIRONMENT: _kernel("layer", "right")}
    run = record("swapped", command, **ONE_PROCESS, **swaps)
    bundle = load(run.bundle)
    (fact,) = bundle.facts(0)["swaps"]
    roles = Counter(map(role_of, fact["places"]))
    assert roles == PARTS_BESIDE_ATTENTION["deepseek-v2"] | {"self_attn.q_proj": 4}
    assert "layers-alike" not in {
        one["id"] for one in run.report["invariants"] if one["ok"] is False
    }
    rows = place_kernels(bundle, 0)
    prefill = rows[(rows["layer"] == 0) & (rows["step"] == 0)]
    decode = rows[(rows["layer"] == 0) & (rows["step"] == 2)]
    names = prefill.groupby(prefill["role"].astype(str))["name"].agg(lambda of: {*map(str, of)})
    products = names["self_attn.o_proj"] - names["self_attn.kv_a_layernorm"]
    for role in ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"):
        assert products <= names[role]
    assert not products & names["input_layernorm"]
    assert "input_layernorm" not in {*decode["role"]}
    assert {*decode[decode["role"] == "self_attn.kv_a_proj_with_mqa"]["component"]} == {"qkv"}


ARCHITECTURE_SLOTS = {
    "deepseek-v2": {
        "qkv": {"self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"},
        "o": {"self_attn.o_proj"},
        "mlp": {f"mlp.{of}{half}" for of in ("", "shared_experts.")
                for half in ("gate_up_proj", "down_proj")},
    },
    # vLLM's CPU engine has no experts without a gate: of Mamba, attention and MLP.
    "nemotron-h": {
        "qkv": {"mixer.in_proj", "mixer.qkv_proj"},
        "o": {"mixer.out_proj", "mixer.o_proj"},
        "mlp": {"mixer.up_proj", "mixer.down_proj"},
    },
    "qwen3-next": {
        "qkv": {"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba", "self_attn.qkv_proj"},
        "o": {"linear_attn.out_proj", "self_attn.o_proj"},
        "mlp": {f"mlp.shared_expert{of}" for of in ("_gate", ".gate_up_proj", ".down_proj")},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURE_SLOTS)
def test_slots_of_other_architectures(
    name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    (row,) = (row for row in ARCHITECTURES if row.name == name)
    config = config_of(row, small=True) | {"hybrid_override_pattern": "M*-M*-"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    swaps = ",".join(_kernel(slot, "right") for slot in ("qkv", "o", "mlp", "lm_head"))
    settings = SwapSettings({"a": (), "b": parse_swaps(swaps)}).to_json()
    found = _answer(environment | ONE_PROCESS, tmp_path, "eager", settings, "b")
    live: dict[str, set[str]] = {}
    for swap in found.told["swaps"]:
        assert swap["state"] == "live", swap
        assert swap["calls"]["b"] >= TOKENS
        live.setdefault(swap["slot"], set()).add(role_of(swap["name"]))
    assert live == ARCHITECTURE_SLOTS[name] | {"lm_head": {"lm_head"}}
    assert found.told["fault"] == ""

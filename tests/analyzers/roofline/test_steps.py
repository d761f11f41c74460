"""Steps grouped by what they work on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_prof.analyzers.roofline.steps import groups_of, launches_of


def steps(tokens: list[int], requests: list[int], phase: str = "decode") -> pd.DataFrame:
    count = len(tokens)
    zeros = np.zeros(count, np.int64)
    decode = phase == "decode"
    return pd.DataFrame(
        {
            "phase": [phase] * count,
            "prefill_requests": zeros if decode else requests,
            "prefill_tokens": zeros if decode else tokens,
            "decode_requests": requests if decode else zeros,
            "decode_tokens": tokens if decode else zeros,
            "context_tokens": [100 * number for number in requests],
        },
        index=pd.RangeIndex(1000, 1000 + count),
    )


def test_one_group_for_each_size_and_a_step_from_its_middle() -> None:
    small, large = groups_of(steps([1, 1, 1, 8, 8], [1, 1, 1, 8, 8]), "decode")
    assert (small.step, small.share) == (1001, pytest.approx(0.6))
    assert (large.step, large.share) == (1004, pytest.approx(0.4))
    assert (small.load.tokens, small.load.requests, small.load.context) == (1, 1, 100)
    assert (large.load.tokens, large.load.sampled, large.load.context) == (8, 8, 100)


def test_drafts_count_as_tokens_and_a_prompt_samples_one() -> None:
    (drafted,) = groups_of(steps([12], [3]), "decode")
    assert (drafted.load.tokens, drafted.load.requests, drafted.load.sampled) == (12, 3, 12)
    (prompt,) = groups_of(steps([512], [2], "prefill"), "prefill")
    assert (prompt.load.tokens, prompt.load.sampled) == (512, 2)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 300])
def test_every_step_is_in_one_of_a_few_groups(count: int) -> None:
    tokens = list(range(1, count + 1))
    found = groups_of(steps(tokens, tokens), "decode")
    assert len(found) == min(count, 8)
    assert sum(group.share for group in found) == pytest.approx(1.0)
    mean = sum(group.load.tokens * group.share for group in found)
    assert mean == pytest.approx(np.mean(tokens))
    assert [group.step for group in found] == sorted(group.step for group in found)


def test_steps_of_unknown_size_or_another_phase_are_in_no_group() -> None:
    assert groups_of(steps([], []), "decode") == []
    assert groups_of(steps([0, 0], [1, 1]), "decode") == []
    assert groups_of(steps([5], [0]), "decode") == []
    assert groups_of(steps([1], [1]), "prefill") == []
    (known,) = groups_of(steps([0, 2], [1, 2]), "decode")
    assert (known.step, known.share) == (1001, 1.0)


MODULES = pd.DataFrame(
    [(0, "model", ""), (3, "model.layers.0.mlp", "mlp"), (4, "model.layers.0", "")],
    columns=["module", "path", "component"],
)
RAN = ("name", "module", "placed_by", "step", "layer")


def kernels(*rows: tuple[object, ...], **more: Any) -> pd.DataFrame:
    """Kernels by what RAN names, one after the other."""
    found = pd.DataFrame(rows, columns=list(RAN)).assign(
        kind="kernel", component="mlp", part=0, start_ns=range(len(rows))
    )
    found = found.assign(end_ns=found["start_ns"] + 5, basis="range", role="mlp").assign(**more)
    names = ["name", "kind", "component", "placed_by", "basis", "role"]
    return found.astype(dict.fromkeys(names, "category"))


def test_launches_have_the_role_and_the_basis_of_their_kernels() -> None:
    rows = [("inside", 3, "", 1, 0), ("in the model", 0, "", 1, 0),
            ("in none", -1, "", 1, 0), ("in no component", 4, "", 1, 0),
            ("guessed", 3, "guess", 1, 0), ("another step", 3, "", 2, 0)]  # fmt: skip
    bases = ["range", "order", "kv", "weight", "name", "range"]
    roles = ["mlp", "", "self_attn.attn", "mlp.down_proj", "", "mlp"]
    found = launches_of(kernels(*rows, basis=bases, role=roles), [1], MODULES)[1]
    assert [(launch.place.role, launch.proven, launch.path) for launch in found] == [
        ("mlp", True, "model.layers.0.mlp"), ("", False, ""), ("self_attn.attn", True, ""),
        ("mlp.down_proj", True, ""), ("", False, ""),
    ]  # fmt: skip


def test_a_launch_reads_what_its_row_says() -> None:
    sets = pd.Index([(), (3, 5)], tupleize_cols=False)
    reads = pd.Categorical.from_codes([1, 0], categories=sets)
    found = kernels(("one", 3, "", 1, 0), ("other", 3, "", 1, 0), reads=reads)
    assert [launch.reads for launch in launches_of(found, [1], MODULES)[1]] == [(3, 5), ()]
    bare = found.drop(columns="reads")
    assert [launch.reads for launch in launches_of(bare, [1], MODULES)[1]] == [(), ()]

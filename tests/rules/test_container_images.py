"""The table of images: every example has the vLLM that its row says, and no other row's."""

from __future__ import annotations

import re

from spark_prof.profiler.vllm_names import is_supported
from spark_prof.rules.container_images import IMAGES, vllm_of_image
from spark_prof.rules.vllm_versions import build_of


def test_every_row() -> None:
    for rule in IMAGES:
        found = vllm_of_image(rule.example)
        assert found is not None, rule.example
        assert (found.version, found.released) == (rule.has, rule.released)
        matching = [other for other in IMAGES if re.fullmatch(other.shape, rule.example)]
        assert matching == [rule]
        # Of four numbers, as 0.10.1.1, the release is known, which is all that is asked.
        assert build_of(re.sub(r"^(\d+\.\d+\.\d+)\.\d+", r"\1", rule.has)), rule.has
        assert rule.source


def test_images_of_which_nobody_says() -> None:
    for image in (
        "vllm/vllm-openai:latest", "vllm/vllm-openai", "vllm-node", "avarok/vllm-dgx-spark:v14",
        "nvcr.io/nvidia/vllm:27.01-py3", "evil/vllm/vllm-openai:v0.26.0", "nvidia/vllm:26.10-py3",
    ):  # fmt: skip
        assert vllm_of_image(image) is None, image


def test_tags_with_more() -> None:
    for image, version in (
        ("docker.io/vllm/vllm-openai:v0.24.0", "0.24.0"),
        ("vllm/vllm-openai:v0.27.1rc1-cu130", "0.27.1rc1"),
        ("nvcr.io/nvidia/vllm:26.03.post1-py3", "0.17.1"),
        ("dgx-vllm:v22", "0.16.0rc2"),
    ):
        found = vllm_of_image(image)
        assert found is not None
        assert found.version == version


def test_some_are_supported_and_those_of_2025_are_not() -> None:
    supported = {rule.example for rule in IMAGES if is_supported(rule.has)}
    assert "nvcr.io/nvidia/vllm:26.10-py3" in supported
    assert not any(":25." in example for example in supported)

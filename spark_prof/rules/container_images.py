"""Which vLLM an image has, by its name and tag, as the one who made it or its users' logs say.

An image that is not listed, such as `latest` or one built at home, has no answer: None of its rows
is guessed. avarok/vllm-dgx-spark:v14 is left out because nobody says which vLLM it has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NVIDIA = "https://docs.nvidia.com/deeplearning/frameworks/vllm-release-notes/rel-{}.html"


@dataclass(frozen=True)
class ImageRule:
    """An image, or images whose tags have the version."""

    shape: str  # of the whole name; its group, if it has one, is the version
    version: str  # of vLLM; empty where the name has it
    released: bool  # it is vLLM's release and nothing else, so that its options are known
    example: str  # an image; it is a test
    has: str  # the version that the example has
    source: str


def _of_nvidia(tag: str, version: str, source: str = "") -> ImageRule:
    shape = rf"nvcr\.io/nvidia/vllm:{re.escape(tag)}(\.post\d+)?-py3(-\w+)?"
    shape = shape.replace("(", "(?:")
    example = f"nvcr.io/nvidia/vllm:{tag}-py3"
    source = source or _NVIDIA.format(tag.replace(".", "-"))
    return ImageRule(shape, version, False, example, version, source)


IMAGES: tuple[ImageRule, ...] = (
    ImageRule(
        r"(?:docker\.io/)?vllm/vllm-openai(?:-[a-z0-9]+)?:v?(\d+\.\d+\.\d+(?:\.post\d+)?(?:rc\d+)?)"
        r"(?:-[\w.-]+)?(?:@sha256:[0-9a-f]{64})?",
        "", True, "vllm/vllm-openai:v0.26.0-aarch64", "0.26.0",
        "vLLM's own images, tagged by their release",
    ),
    ImageRule(
        r"(?:(?:docker\.io/)?avarok/dgx-vllm-nvfp4-kernel|dgx-vllm):v22",
        "0.16.0rc2", False, "avarok/dgx-vllm-nvfp4-kernel:v22", "0.16.0rc2",
        "https://github.com/Avarok-Cybersecurity/dgx-vllm",
    ),
    _of_nvidia("25.09", "0.10.1.1", "users' logs: 0.10.1.1+381074ae.nv25.09"),
    _of_nvidia("25.10", "0.10.2"),
    _of_nvidia("25.12", "0.11.1", "https://github.com/vllm-project/vllm/issues/31424"),
    _of_nvidia("26.01", "0.11.1"),
    _of_nvidia("26.02", "0.15.1", "https://github.com/NVIDIA/dgx-spark-playbooks/issues/79"),
    _of_nvidia("26.03", "0.17.1"),
    _of_nvidia("26.05", "0.20.1"),
    _of_nvidia("26.08", "0.27.1", "users' logs: 0.27.1+93523f72.nv26.8"),
    _of_nvidia("26.10", "0.31.0"),
)  # fmt: skip


@dataclass(frozen=True)
class ImageVllm:
    """The vLLM of an image."""

    version: str
    released: bool


def vllm_of_image(image: str) -> ImageVllm | None:
    """The vLLM that an image has by its name; None where nobody says.

    vllm_of_image("nvcr.io/nvidia/vllm:26.10-py3").version == "0.31.0"
    """
    for rule in IMAGES:
        if match := re.fullmatch(rule.shape, image):
            return ImageVllm(rule.version or match[1], rule.released)
    return None

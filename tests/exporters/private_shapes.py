"""Shapes of private texts of clouds, chats, clusters and other scripts, listed after the rules."""

from __future__ import annotations

from tests.secret_corpus import lines_of

SHAPES = lines_of("private-shapes")
"""Each has at least one of the telling words."""

TELLING = (
    "kestrel", "zdenka", "horvat", "horváth", "481920573312", "481920", "3171919", "4711",
    "0a1b2c3d4e5f67890", "0x0a1f0713", "10-31-7", "3-71-44", "31.7.19", "31.7.019", "5cba.ef31",
    "31:7::19", "31:7ff", "ef:31:07", "kstr", "4c4c4544", "b7c04f334d32",
    "7d9f8b6c5", "x2x4z", "zdns", "c0zd", "žofia", "модель", "张伟", "模型", "größ", "ßmann",
    "ярослав", "kraken", "kräken", "zeus", "b12", "3623811015", "jk3vqx", "aaaac3nz",
    "370400440532", "krken", "deadbeefcafe", "72f988bf", "2d7cd011db47", "44.9.7", "44::9",
    "l2hvbwuv", "tentacle",
)  # fmt: skip

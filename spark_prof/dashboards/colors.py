"""What each colour means, once for every figure and page.

A component has the same colour everywhere. The components that take most of a step have Okabe and
Ito's colours; the others share a hue with what is related to them, and are chosen so that those
which follow each other in a decoder stay apart for colour-blind readers too. Since nobody tells 17
colours apart, bars also carry their names.
"""

COLORS = {
    "embedding": "#CDD592",
    "norm": "#F0E442",
    "qkv": "#56B4E9",
    "rope": "#BADDF5",
    "kv_write": "#00F2C8",
    "attention": "#0072B2",
    "o_proj": "#90B2C9",
    "router": "#E69F00",
    "experts": "#D55E00",
    "shared_experts": "#AA6983",
    "mlp": "#009E73",
    "ssm": "#007B4B",
    "lm_head": "#882255",
    "sampler": "#CC79A7",
    "collective": "#B1B365",
    "memcpy": "#B92699",
    "other": "#999999",
}
"""The colour of each component."""

TEXT = "#7d838c"
SHADES = ("#6b5d50", "#a08f7e", "#cfc3b5")
"""Of what is no component: three browns, told apart by how dark they are, and by patterns."""

LINES = "rgba(128, 132, 140, 0.25)"
NEUTRAL = "#8a9099"

PHASE_COLORS = {"prefill": "#a67c1e", "decode": "#5f7486", "mixed": "#8468a8", "unknown": NEUTRAL}
"""The colour of what a step does, none of which is a component's."""

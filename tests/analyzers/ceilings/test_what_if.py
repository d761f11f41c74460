"""Changes of format narrow what they are for, and nothing else."""

from spark_prof.analyzers.ceilings.ceiling_rows import Architecture, Weights, WeightsOfModel
from spark_prof.analyzers.ceilings.checkpoint_ceilings import CHANGES, changed
from tests.rows import each_row

PARAMETERS = 1_000_000


def weights(component: str, form: str, per_parameter: float, **more: object) -> Weights:
    size = PARAMETERS * per_parameter
    made = Weights(component, form, "decoder", PARAMETERS, size, 1, matrix=True)
    return Weights(**{**made.__dict__, **more})


def model(*found: Weights) -> WeightsOfModel:
    return WeightsOfModel(Architecture("X", 1, 1, 0, 0, 0, ()), found, seen=True)


def change(name: str):
    return next(change for change in CHANGES if change.id == name)


@each_row("each", CHANGES)
def test_a_change_converts_its_components_and_leaves_the_rest(each) -> None:
    components = ("qkv", "o_proj", "ssm", "lm_head", "mlp", "shared_experts", "experts", "router")
    before = model(*(weights(component, "fp16", 2.0) for component in components))
    after = changed(before, each)
    assert after is not None
    for old, new in zip(before.weights, after.weights, strict=True):
        assert new.format == (each.format if old.component in each.components else "fp16")
        assert new.parameters == old.parameters
    assert after.weights[-1] == before.weights[-1]


def test_what_is_narrow_already_stays() -> None:
    before = model(weights("qkv", "nvfp4", 0.5625), weights("lm_head", "bf16", 2.0))
    after = changed(before, change("attention-head-mxfp4"))
    assert after is not None
    assert [w.format for w in after.weights] == ["nvfp4", "mxfp4"]


def test_a_change_of_nothing_is_none() -> None:
    assert changed(model(weights("experts", "mxfp4", 0.53125)), change("all-nvfp4")) is None
    assert changed(model(weights("qkv", "bf16", 2.0)), change("all-bf16")) is None

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from maxtext.parallel.layout import Layout, constrain, current_layout, use_layout

RULES = {
    "batch": ("data", "fsdp"),
    "embed": ("fsdp",),
    "mlp": ("tensor",),
    "both": ("tensor", "fsdp"),
    "norm": (),
}


def layout_of(data: int, fsdp: int, tensor: int) -> Layout:
    devices = np.asarray(jax.devices()[: data * fsdp * tensor]).reshape(data, fsdp, tensor)
    mesh = Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    return Layout(mesh, RULES)


def test_each_logical_axis_lies_on_its_mesh_axes_the_major_first() -> None:
    layout = layout_of(2, 2, 2)
    assert layout.spec(("batch", "mlp"), (8, 6)) == P(("data", "fsdp"), "tensor")
    assert layout.spec(("norm", "both", None), (3, 4, 5)) == P(None, ("tensor", "fsdp"), None)
    assert layout.spec((), ()) == P()


def test_mesh_axes_of_size_one_vanish() -> None:
    layout = layout_of(1, 4, 1)
    assert layout.spec(("batch", "mlp"), (4, 7)) == P("fsdp", None)
    assert layout_of(1, 1, 1).spec(("batch", "embed", "both"), (3, 5, 7)) == P(None, None, None)


def test_two_axes_may_share_a_mesh_axis_of_size_one() -> None:
    assert layout_of(8, 1, 1).spec(("batch", "embed"), (8, 3)) == P("data", None)


def test_ways_is_the_number_of_parts() -> None:
    layout = layout_of(2, 4, 1)
    assert [layout.ways(name) for name in ("batch", "embed", "mlp", "norm")] == [8, 4, 1, 1]


@pytest.mark.parametrize(
    ("axes", "shape", "text"),
    [
        (("batch",), (8, 2), "1 logical axes ('batch',) for an array of shape (8, 2)"),
        (
            ("heads",),
            (8,),
            "logical_axis_rules has no rule for 'heads'; it has batch, embed, mlp, both, norm",
        ),
        (
            ("batch", "embed"),
            (8, 8),
            "mesh axis 'fsdp' is used twice in one array: logical_axis_rules gives it to 'batch' "
            "and 'embed'; take it from one of them",
        ),
        (
            ("both", "norm"),
            (6, 6),
            "'both' of size 6 does not divide over tensor 2 x fsdp 2 = 4 devices; choose a degree "
            "that divides 6, or replicate it: logical_axis_rules='{both: []}'",
        ),
    ],
)
def test_what_cannot_be_laid_out_is_refused(axes: tuple, shape: tuple, text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        layout_of(2, 2, 2).spec(axes, shape)
    assert str(caught.value) == text


def test_a_rule_for_an_unknown_mesh_axis_is_refused() -> None:
    mesh = layout_of(1, 1, 1).mesh
    with pytest.raises(ValueError, match="logical_axis_rules maps 'mlp' to 'model', which is no m"):
        Layout(mesh, {"mlp": ("model",)})


def test_ways_of_an_axis_without_a_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rule for 'heads'"):
        layout_of(1, 1, 1).ways("heads")


def test_constrain_pins_inside_a_layout_and_is_the_identity_outside() -> None:
    x = jnp.ones((8, 6))
    assert constrain(x, "no such axis") is x
    layout = layout_of(2, 2, 2)
    with use_layout(layout):
        pinned = jax.jit(lambda y: constrain(y * 2, "batch", "mlp"))(x)
    assert pinned.sharding == NamedSharding(layout.mesh, P(("data", "fsdp"), "tensor"))


def test_layouts_nest_and_end_with_their_block() -> None:
    outer, inner = layout_of(2, 2, 2), layout_of(8, 1, 1)
    with use_layout(outer):
        with pytest.raises(RuntimeError, match="boom"), use_layout(inner):  # noqa: PT012
            assert current_layout() is inner
            raise RuntimeError("boom")
        assert current_layout() is outer
    assert current_layout() is None


def test_what_belongs_to_a_weight_lies_as_it_does() -> None:
    layout = layout_of(2, 2, 2)
    weight = layout.sharding(("embed", "mlp", "norm"), (8, 6, 5))
    assert layout.like(weight, (8, 6, 5)).is_equivalent_to(weight, 3)
    assert layout.like(weight, (1, 6, 1)).spec == P(None, "tensor", None)


@pytest.mark.parametrize(
    ("shape", "want"),
    [
        ((8, 6, 5), P(("fsdp", "data"), ("tensor",), None)),
        ((8, 12, 5), P(("fsdp",), ("tensor", "data"), None)),
        ((8, 6, 10), P(("fsdp",), ("tensor",), ("data",))),
        ((6, 6, 5), P(("fsdp",), ("tensor",), None)),
        ((1, 4, 1), P(None, ("tensor", "data"), None)),
        ((1, 2, 1), P(None, ("tensor",), None)),
    ],
)
def test_the_largest_dim_that_divides_is_split_over_data_too(
    shape: tuple[int, ...], want: P
) -> None:
    layout = layout_of(2, 2, 2)
    weight = NamedSharding(layout.mesh, P("fsdp", "tensor", None))
    assert layout.like(weight, shape, over_data=True).is_equivalent_to(
        NamedSharding(layout.mesh, want), 3
    )


def test_nothing_is_split_over_data_twice_or_without_it() -> None:
    layout = layout_of(2, 2, 2)
    weight = NamedSharding(layout.mesh, P("data", None))
    assert layout.like(weight, (4, 8), over_data=True).is_equivalent_to(weight, 2)
    one = layout_of(1, 2, 2)
    weight = NamedSharding(one.mesh, P("fsdp", None))
    assert one.like(weight, (4, 8), over_data=True).is_equivalent_to(weight, 2)

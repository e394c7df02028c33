"""What programs do, read from those that XLA made of small functions, and from its other forms."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from maxtext.parallel.hlo import HloArray
from maxtext.parallel.program import Collective, collectives, flops, memory, totals

P = PartitionSpec
REPLICATED = P()
# Not in the order of their ids, as on a TPU: a group names places in the mesh.
DEVICES = np.array(jax.devices()[:8])[[0, 1, 3, 2, 6, 7, 5, 4]].reshape(2, 4)
MESH = Mesh(DEVICES, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
TENSOR = ((0, 1, 2, 3), (4, 5, 6, 7))
DATA = ((0, 4), (1, 5), (2, 6), (3, 7))


def shaped(*shape: int, spec: PartitionSpec = REPLICATED) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, spec))


def constrained(x: jax.Array, *parts: str | None) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*parts)))


def compiled(function: Any, *shapes: jax.ShapeDtypeStruct, **options: Any) -> Any:
    return jax.jit(function, **options).lower(*shapes).compile()


def manual(function: Any, spec: PartitionSpec, out: PartitionSpec, *shape: int) -> list[Collective]:
    mapped = jax.shard_map(function, mesh=MESH, in_specs=spec, out_specs=out)
    return collectives(compiled(mapped, shaped(*shape, spec=spec)), MESH)


def feed_forward(x: jax.Array, weights: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return constrained(jnp.tanh(x @ w) @ w.T, "data", None), None

    return jax.lax.scan(layer, x, weights)[0]


def text_of(*lines: str, devices: int = 8) -> Any:
    """A program of these instructions, as if compiled."""
    body = "\n".join(f"  {line}" for line in lines)
    header = f"HloModule jit_f, is_scheduled=true, num_partitions={devices}"
    text = f"{header}\n\nENTRY %main (x: f32[4]) -> f32[4] {{\n{body}\n}}\n"
    return SimpleNamespace(as_text=lambda: text)


def test_a_collective_in_a_scan_runs_once_a_turn() -> None:
    program = compiled(
        feed_forward,
        shaped(16, 64, spec=P("data")),
        shaped(5, 64, 128, spec=P(None, None, "tensor")),
    )
    (one,) = collectives(program, MESH)
    assert (one.kind, one.axes, one.groups, one.runs) == ("all-reduce", ("tensor",), TENSOR, 5)
    assert one.arrays == (HloArray("f32", (8, 64)),)
    assert one.bytes_moved == 2 * 3 / 4 * 8 * 64 * 4
    assert "while/body" in one.op_name
    assert totals([one]) == {("all-reduce", ("tensor",)): (5, 5 * one.bytes_moved)}


def test_loops_in_a_loop_multiply() -> None:
    def outer(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, y: feed_forward(y, weights), x)

    program = compiled(
        outer, shaped(16, 64, spec=P("data")), shaped(5, 64, 128, spec=P(None, None, "tensor"))
    )
    assert [one.runs for one in collectives(program, MESH)] == [15]
    assert flops(program) == 15 * 2 * (2 * 8 * 64 * 32)


def test_of_a_loop_without_a_known_end_nothing_is_said() -> None:
    def until(x: jax.Array, w: jax.Array) -> jax.Array:
        def turn(x: jax.Array) -> jax.Array:
            return constrained(x @ w, "data", None)

        return jax.lax.while_loop(lambda x: jnp.sum(x) < 1e3, turn, x)

    program = compiled(
        until, shaped(16, 64, spec=P("data")), shaped(64, 64, spec=P(None, "tensor"))
    )
    found = collectives(program, MESH)
    # XLA gathers the weights once, before the loop.
    assert {(one.kind, one.runs) for one in found} == {("all-gather", 1), ("all-reduce", None)}
    assert totals(found)["all-reduce", ("data",)] == (None, None)
    assert flops(program) is None


def test_the_backward_pass_of_fsdp_and_tensor_parallelism_is_seen_whole() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(feed_forward(x, weights))

    weights = shaped(5, 64, 128, spec=P(None, "data", "tensor"))
    program = compiled(jax.grad(loss), weights, shaped(16, 64, spec=P("data")))
    found = collectives(program, MESH)
    # Weights are gathered over data, forward and backward; gradients are summed over data, two
    # products each, which XLA joins; activations are summed over tensor.
    assert set(totals(found)) == {
        ("all-gather", ("data",)),
        ("all-reduce", ("data",)),
        ("all-reduce", ("tensor",)),
    }
    joined = [one for one in found if len(one.arrays) == 2]
    assert [one.axes for one in joined] == [("data",)]
    assert joined[0].bytes_moved == 2 * 1 / 2 * 2 * 64 * 32 * 4
    assert {one.groups for one in found if one.axes == ("data",)} == {DATA}
    assert {one.runs for one in found} == {5}
    # Two products forward and four backward.
    assert flops(program) == 5 * 6 * 2 * 8 * 64 * 32


def test_an_all_to_all_of_constraints_is_one_though_cut_into_parts() -> None:
    def swap(x: jax.Array) -> jax.Array:
        return constrained(constrained(x, "tensor", None) * 2, None, "tensor")

    (one,) = collectives(compiled(swap, shaped(16, 64, spec=P("tensor"))), MESH)
    assert (one.kind, one.axes, one.groups, one.runs) == ("all-to-all", ("tensor",), TENSOR, 1)
    assert one.bytes_moved == 3 / 4 * 4 * 64 * 4


def test_collectives_of_shard_map_are_told_apart() -> None:
    def all_of_them(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.lax.all_to_all(x, "tensor", 1, 0, tiled=True)
        y = jax.lax.psum_scatter(y, "data", scatter_dimension=0, tiled=True)
        y = jax.lax.ppermute(y, "tensor", [(i, (i + 1) % 4) for i in range(4)])
        return jax.lax.psum(y, ("data", "tensor")), jax.lax.psum(2 * y, ("data", "tensor"))

    found = {one.kind: one for one in manual(all_of_them, P("tensor"), (P(), P()), 16, 64)}
    assert {kind: one.axes for kind, one in found.items()} == {
        "all-to-all": ("tensor",),
        "reduce-scatter": ("data",),
        "collective-permute": ("tensor",),
        "all-reduce": ("data", "tensor"),
    }
    assert found["reduce-scatter"].arrays == (HloArray("f32", (8, 16)),)
    assert found["reduce-scatter"].bytes_moved == 8 * 16 * 4
    assert found["collective-permute"].groups[:4] == ((0, 1), (1, 2), (2, 3), (3, 0))
    assert found["collective-permute"].bytes_moved == 8 * 16 * 4
    assert found["all-reduce"].groups == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("groups", "want"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", TENSOR),
        ("{{0,4},{1,5},{2,6},{3,7}}", DATA),
        ("{}", (tuple(range(8)),)),
        ("[2,4]<=[8]", TENSOR),
        ("[4,2]<=[2,4]T(1,0)", DATA),
        ("mesh['data'=2,'tensor'=4] {'tensor'}", TENSOR),
        ("mesh['data'=2,'tensor'=4] {'data'}", DATA),
        ("mesh['data'=2,'tensor'=4] {'data','tensor'}", (tuple(range(8)),)),
        ("mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4] {'a','b':(2)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]<=[4,2]T(1,0)) {'a'}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'a'}", ((0, 1), (2, 3))),
    ],
)
def test_groups_are_read_in_every_form(groups: str, want: tuple[tuple[int, ...], ...]) -> None:
    line = f"ROOT %r = f32[4]{{0}} all-reduce(%x), replica_groups={groups}, channel_id=1"
    (one,) = collectives(text_of(line), MESH)
    assert one.groups == want


@pytest.mark.parametrize(
    ("lines", "kind", "arrays"),
    [
        (
            (
                "%s = (f32[4]{0}, f32[16]{0}) all-gather-start(%x), replica_groups=[2,4]<=[8]",
                "ROOT %d = f32[16]{0} all-gather-done(%s)",
            ),
            "all-gather",
            (HloArray("f32", (16,)),),
        ),
        (
            (
                "%s = ((bf16[4]{0:T(8)}, f32[2]{0}), (bf16[16]{0:T(8)S(1)}, f32[8]{0})) "
                "all-gather-start(%x, %x), replica_groups=[2,4]<=[8]",
                "ROOT %d = (bf16[16]{0}, f32[8]{0}) all-gather-done(%s)",
            ),
            "all-gather",
            (HloArray("bf16", (16,)), HloArray("f32", (8,))),
        ),
        (
            (
                "%s = (f32[4]{0}, f32[8]{0}) all-reduce-start(%x, %x), replica_groups=[2,4]<=[8]",
                "ROOT %d = (f32[4]{0}, f32[8]{0}) all-reduce-done(%s)",
            ),
            "all-reduce",
            (HloArray("f32", (4,)), HloArray("f32", (8,))),
        ),
        (
            (
                "%s = ((f32[16]{0}), f32[4]{0}) reduce-scatter-start(%x), dimensions={0}, "
                "replica_groups=[2,4]<=[8]",
                "ROOT %d = f32[4]{0} reduce-scatter-done(%s)",
            ),
            "reduce-scatter",
            (HloArray("f32", (4,)),),
        ),
        (
            (
                "%s = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%x), "
                "source_target_pairs={{0,1},{1,2}}",
                "ROOT %d = f32[4]{0} collective-permute-done(%s)",
            ),
            "collective-permute",
            (HloArray("f32", (4,)),),
        ),
        (
            (
                "%s = (f32[4]{0}, u32[], token[]) send(%x, %t), channel_id=2, "
                'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2}}"}',
                "%d = token[] send-done(%s), channel_id=2",
            ),
            "send",
            (HloArray("f32", (4,)),),
        ),
    ],
)
def test_what_begins_and_ends_counts_once(lines: tuple, kind: str, arrays: tuple) -> None:
    (one,) = collectives(text_of(*lines), MESH)
    assert (one.kind, one.arrays, one.axes) == (kind, arrays, ("tensor",))


def test_a_collective_in_a_function_of_its_own_counts_once() -> None:
    text = """HloModule jit_f, num_partitions=8

%wrapped (y: f32[4]) -> f32[16] {
  %y = f32[4]{0} parameter(0)
  ROOT %g = f32[16]{0} all-gather(%y), replica_groups=[2,4]<=[8], dimensions={0}
}

ENTRY %main (x: f32[4]) -> f32[16] {
  %x = f32[4]{0} parameter(0)
  %s = ((f32[4]{0}), f32[16]{0}, u32[]) async-start(%x), calls=%wrapped
  ROOT %d = f32[16]{0} async-done(%s), calls=%wrapped
}
"""
    program: Any = SimpleNamespace(as_text=lambda: text)
    found = collectives(program, MESH)
    assert [(one.kind, one.runs) for one in found] == [("all-gather", 1)]


def test_a_program_of_other_devices_is_refused() -> None:
    with pytest.raises(ValueError, match="of 4 devices and the mesh has 8"):
        collectives(text_of("ROOT %x = f32[4]{0} parameter(0)", devices=4), MESH)


@pytest.mark.parametrize(
    ("dtype", "num_bytes"),
    [("f32", 24), ("bf16", 12), ("pred", 6), ("s4", 3), ("f8e4m3fn", 6), ("c64", 48), ("token", 0)],
)
def test_bytes_follow_from_the_type(dtype: str, num_bytes: int) -> None:
    assert HloArray(dtype, (2, 3)).num_bytes == num_bytes


def test_memory_counts_a_donated_argument_once() -> None:
    def add(x: jax.Array, y: jax.Array) -> jax.Array:
        return x + y

    shapes = (shaped(64, 64, spec=P("data")),) * 2
    whole = memory(compiled(add, *shapes))
    donated = memory(compiled(add, *shapes, donate_argnums=0))
    assert whole is not None
    assert donated is not None
    part = 64 * 64 * 4 // 2
    assert (whole.arguments, whole.outputs, whole.aliased) == (2 * part, part, 0)
    assert (donated.arguments, donated.outputs, donated.aliased) == (2 * part, part, part)
    assert whole.peak - donated.peak == part


def test_the_peak_has_what_a_loop_keeps_for_its_backward_pass() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0])

    program = memory(compiled(jax.grad(loss), shaped(5, 64, 64), shaped(64, 64)))
    assert program is not None
    assert program.temporaries >= 5 * 64 * 64 * 4
    assert program.peak == program.arguments + program.outputs + program.temporaries


def test_flops_of_products_are_exact_whatever_they_contract() -> None:
    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum("bqhd,bkhd->bhqk", x, y)

    program = compiled(product, shaped(2, 12, 3, 8), shaped(2, 20, 3, 8))
    assert flops(program) == 2 * (2 * 3) * 12 * 20 * 8


def test_flops_of_a_product_by_a_library_are_seen() -> None:
    call = (
        'ROOT %g = (f32[12,20]{1,0}, s8[64]{0}) custom-call(%x, %y), custom_call_target="__gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
        '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
    )
    lines = ("%x = f32[12,8]{1,0} parameter(0)", "%y = f32[8,20]{1,0} parameter(1)", call)
    assert flops(text_of(*lines)) == 2 * 12 * 20 * 8


def test_a_product_that_is_a_convolution_is_not_guessed_at() -> None:
    line = "ROOT %c = f32[12,20]{1,0} convolution(%x, %y), dim_labels=bf_io->bf"
    assert flops(text_of(line)) is None

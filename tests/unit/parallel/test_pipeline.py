import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.parallel.layout import Layout, use_layout
from maxtext.parallel.mesh import make_layout
from maxtext.parallel.params import Param
from maxtext.parallel.pipeline import Pipeline, Stack, _deal, run_stack
from maxtext.parallel.stages import Stages

ROWS, LENGTH, WIDTH = 32, 2, 4


def layout(*argv: str) -> Layout:
    return make_layout(load(argv, {}).config.mesh, jax.devices())


def layer(weight, x, extra, *, plus, numbers):
    """Depends on the order of layers, their kind and slice, and on the row."""
    return weight * x + plus * extra + numbers[:, None, None]


def stack(cycle: tuple[float, ...], size: int) -> Stack:
    def layers(rows):
        return [functools.partial(layer, plus=plus, numbers=rows["numbers"]) for plus in cycle]

    spec = Param((WIDTH,), ("embed",), lambda *_: jnp.ones(()), "float32")
    weights = 1.0 + np.arange(size * WIDTH, dtype=np.float32).reshape(size, WIDTH) / 64
    return Stack(layers, spec, jnp.asarray(weights), jnp.arange(1.0, size + 1))


def inputs() -> tuple[jax.Array, dict[str, jax.Array]]:
    x = jnp.arange(ROWS * LENGTH * WIDTH, dtype=jnp.float32).reshape(ROWS, LENGTH, WIDTH) / 64
    return x, {"numbers": jnp.arange(ROWS, dtype=jnp.float32) / 8}


def run(pipeline: Pipeline | None, stages: Stages, given: Stack):
    """The result, and the gradient of a sum that tells places apart."""

    def total(weights, x, rows):
        one = Stack(given.layers, given.specs, weights, given.per_layer)
        out = run_stack(pipeline, stages, one, x, rows)
        return jnp.sum(out * jnp.sin(jnp.arange(out.size).reshape(out.shape))), out

    (_, out), grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(
        given.weights, *inputs()
    )
    return out, grads


@pytest.mark.parametrize(
    ("stages", "repeats", "microbatches", "delayed", "remat"),
    [
        (2, 1, 2, False, True),
        (2, 2, 8, False, False),
        (4, 2, 4, False, True),
        (4, 3, 16, False, False),
        (2, 1, 4, True, False),
        (4, 2, 16, True, True),
    ],
)
def test_stages_give_what_layers_in_order_give(
    *, stages: int, repeats: int, microbatches: int, delayed: bool, remat: bool
) -> None:
    pipeline = Pipeline(
        stages, 2, repeats, microbatches, delayed, gather_once=delayed, remat_layers=delayed
    )
    # Some layers are left, and the cycle goes on in them.
    given = stack((1.0, 10.0), pipeline.num_layers + stages)
    want = run(None, Stages(), given)
    with use_layout(layout(f"ici_pipeline_parallelism={stages}")):
        got = run(pipeline, Stages(remat=remat), given)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * np.abs(other).max())


@pytest.mark.parametrize(("stages", "repeats"), [*itertools.product((2, 3, 4, 6), (2, 3, 4, 9))])
def test_blocks_are_dealt_in_rounds_of_one_each(stages: int, repeats: int) -> None:
    rounds = _deal(stages, repeats)
    assert len(rounds) == repeats
    got = {}
    for sent, to, place in rounds:
        assert sorted(to) == list(range(stages))
        for sender, receiver in enumerate(to):
            got[int(place[receiver]), int(receiver)] = int(sender * repeats + sent[sender])
    assert got == {divmod(n, stages): n for n in range(stages * repeats)}


def test_iterations_are_as_few_as_there_can_be() -> None:
    assert Pipeline(4, 1, 1, 8).num_iterations == 8 + 3
    assert Pipeline(4, 1, 2, 8).num_iterations == 16 + 3
    assert Pipeline(4, 1, 2, 8, delayed=True).num_iterations == 16 + 6

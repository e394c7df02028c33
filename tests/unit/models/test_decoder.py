import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.layers.embeddings import Embedding, embed
from maxtext.models.decoder import output_kernel
from maxtext.parallel.params import count_params, named_leaves
from maxtext.parallel.program import flops
from tiny import LENGTH, ROWS, VOCAB, Taken, ragged_batch, start_state, take_steps, tiny_setup


def test_t0_has_as_many_parameters_as_reckoned_by_hand() -> None:
    assert count_params(tiny_setup().specs) == 102_720


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        ("base_num_kv_heads=8", 12_288),
        ("logits_via_embedding=true", -16_384),
        ("use_qk_norm=true", 2 * 2 * 8),
        ("mlp_activations=[relu]", -2 * 64 * 128),
        ("base_num_decoder_layers=3", 34_944),
        ("attention_bias=true", 2 * (8 + 2 * 2) * 8),
        ("decoder_block=gemma2 sliding_window_size=9", 2 * 2 * 64),
    ],
)
def test_each_part_has_its_parameters(argv: str, more: int) -> None:
    assert count_params(tiny_setup(*argv.split(" ")).specs) == 102_720 + more


@pytest.mark.parametrize("tiles", [1, 4])
def test_the_loss_of_an_all_zero_head_is_the_log_of_the_vocabulary(tiles: int) -> None:
    setup = tiny_setup(f"num_vocab_tiling={tiles}")
    params = start_state(setup).params
    head = jax.tree.map(jnp.zeros_like, params.decoder.logits_dense)
    decoder = dataclasses.replace(params.decoder, logits_dense=head)
    zero_head = dataclasses.replace(params, decoder=decoder)
    sums = jax.jit(setup.loss_fn(dropout=False))(zero_head, ragged_batch())
    assert float(sums.cross_entropy / sums.tokens) == pytest.approx(math.log(256), rel=1e-6)


QWEN3 = ("use_qk_norm=true", "logits_via_embedding=true")
GEMMA2 = (
    "decoder_block=gemma2",
    "sliding_window_size=9",
    "base_num_decoder_layers=3",
    "final_logits_soft_cap=2",
)
ALL_AT_ONCE = ("num_vocab_tiling=4", "scan_layers=false", "remat_policy=minimal")


@functools.cache
def step_of(family: tuple[str, ...]) -> Taken:
    return take_steps(tiny_setup(*family), ragged_batch())


@pytest.mark.parametrize(
    ("family", "argv"),
    [
        *((family, ("scan_layers=false",)) for family in ((), QWEN3)),
        *((family, ("num_vocab_tiling=4",)) for family in ((), QWEN3)),
        *((family, ALL_AT_ONCE) for family in ((), QWEN3, GEMMA2)),
    ],
)
def test_how_it_is_run_does_not_change_a_step(
    family: tuple[str, ...], argv: tuple[str, ...]
) -> None:
    want = step_of(family)
    got = take_steps(tiny_setup(*family, *argv), ragged_batch())
    assert got.metrics.loss == pytest.approx(want.metrics.loss, rel=1e-6)
    assert got.metrics.grad_norm == pytest.approx(want.metrics.grad_norm, rel=1e-5)


def test_capped_logits_bound_the_loss() -> None:
    argv = ("num_vocab_tiling=4", "dense_init_scale=100")
    loss = {}
    for cap in (0.0, 0.01):
        setup = tiny_setup(*argv, f"final_logits_soft_cap={cap}")
        sums = jax.jit(setup.loss_fn(dropout=False))(start_state(setup).params, ragged_batch())
        loss[cap] = float(sums.cross_entropy / sums.tokens)
    assert abs(loss[0.01] - math.log(256)) < 0.02
    assert loss[0.0] > math.log(256) + 1


def test_tied_embeddings_are_the_head_and_learn_from_both_ends() -> None:
    setup = tiny_setup("logits_via_embedding=true")
    params, batch = start_state(setup).params, jax.device_put(ragged_batch())
    assert "decoder/logits_dense/kernel" not in named_leaves(params)
    np.testing.assert_array_equal(output_kernel(params), params.token_embedder.embedding.T)
    loss = setup.loss_fn(dropout=False)
    grad = jax.jit(jax.grad(lambda p: loss(p, batch).cross_entropy))(params)
    rows = np.abs(grad.token_embedder.embedding).max(axis=1)
    counted = batch.segments != 0
    never_read = np.setdiff1d(np.arange(256), np.asarray(batch.inputs)[counted])
    # Every row is part of the softmax, so those that no input reads learn too.
    assert len(never_read) > 50
    assert np.all(rows[never_read] > 0)


def test_documents_in_one_row_have_the_losses_of_each_alone() -> None:
    setup = tiny_setup()
    loss, params = jax.jit(setup.loss_fn(dropout=False)), start_state(setup).params
    packed = ragged_batch()

    def alone(document: int) -> tuple[float, int]:
        """The rows moved to the left, with nothing else in them."""
        planes = {name: np.zeros_like(packed.inputs) for name in ("inputs", "targets")}
        positions, segments = np.zeros_like(packed.inputs), np.zeros_like(packed.inputs)
        for row, ids in enumerate(packed.segments):
            held = np.flatnonzero(ids == document)
            for name, plane in planes.items():
                plane[row, : len(held)] = getattr(packed, name)[row, held]
            positions[row, : len(held)] = np.arange(len(held))
            segments[row, : len(held)] = 1
        batch = dataclasses.replace(packed, **planes, positions=positions, segments=segments)
        sums = loss(params, batch)
        return float(sums.cross_entropy), int(sums.tokens)

    both = loss(params, packed)
    first, second = alone(1), alone(2)
    assert first[1] + second[1] == both.tokens
    assert first[0] + second[0] == pytest.approx(float(both.cross_entropy), rel=1e-6)


def test_weights_may_be_narrower_than_activations() -> None:
    setup = tiny_setup("weight_dtype=bfloat16")
    assert {str(leaf.dtype) for leaf in named_leaves(start_state(setup).params).values()} == {
        "bfloat16"
    }
    narrow, wide = (
        take_steps(tiny_setup(f"weight_dtype={dtype}"), ragged_batch()).metrics.loss
        for dtype in ("bfloat16", "float32")
    )
    assert narrow == pytest.approx(wide, rel=0.1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_root_that_scales_embeddings_is_rounded_to_their_type(dtype: str) -> None:
    table = jnp.asarray([[1.0] * 3072, [2.0] * 3072], jnp.float32)
    tokens = jnp.asarray([[0, 1]])
    got = embed(Embedding(embedding=table), tokens, dtype=dtype, scaled=True)
    # The root of 3072 is 55.4256; bfloat16 has 55.5 next to it.
    root = 55.5 if dtype == "bfloat16" else np.float32(3072**0.5)
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got[0, :, 0], np.float64), [root, 2 * root])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_embeds_as_a_lookup_does(dtype: str) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    table = jax.random.normal(keys[0], (37, 16))
    tokens = jax.random.randint(keys[1], (3, 29), 0, 37)
    weights = jax.random.normal(keys[2], (3, 29, 16))

    def embedded(table: jax.Array, one_hot: bool) -> tuple[jax.Array, jax.Array]:
        x = embed(Embedding(embedding=table), tokens, dtype=dtype, scaled=True, one_hot=one_hot)
        return jnp.sum(x.astype(jnp.float32) * weights), x

    gradient = jax.jit(jax.grad(embedded, has_aux=True), static_argnums=1)
    (wanted, looked_up), (got, multiplied) = gradient(table, False), gradient(table, True)
    assert multiplied.dtype == looked_up.dtype == dtype
    np.testing.assert_array_equal(np.asarray(multiplied), np.asarray(looked_up))
    np.testing.assert_allclose(got, wanted, atol=1e-4 if dtype == "float32" else 0.2)
    # Tokens that do not occur have no gradient.
    assert not np.any(np.asarray(got)[np.setdiff1d(np.arange(37), tokens)])


def test_a_step_may_embed_by_a_product() -> None:
    lookup, product = (
        take_steps(tiny_setup(f"use_iota_embed={one}"), ragged_batch(), steps=2)
        for one in ("false", "true")
    )
    assert product.metrics.loss == pytest.approx(float(lookup.metrics.loss), rel=1e-6)
    assert product.metrics.grad_norm == pytest.approx(float(lookup.metrics.grad_norm), rel=1e-5)
    # The products of table and rows, and of rows and gradient.
    more = 2 * 2 * ROWS * LENGTH * VOCAB * 64
    assert flops(product.compiled) == (flops(lookup.compiled) or 0) + more


def test_new_gemma_norms_are_those_of_scale_one() -> None:
    setup = tiny_setup("decoder_block=gemma3", "sliding_window_size=9", "use_qk_norm=true")
    scales = {
        name: leaf
        for name, leaf in named_leaves(start_state(setup).params).items()
        if name.endswith("scale")
    }
    # Four a layer, two more on queries and keys, one at the end; all kept less 1.
    assert len(scales) == 4 + 2 + 1
    assert all(not np.any(leaf) for leaf in scales.values())

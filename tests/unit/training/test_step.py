import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from maxtext.data.batch import UNCOUNTED, Batch, empty_batch, host_batch
from maxtext.models.decoder import Model
from maxtext.parallel.layout import use_layout
from maxtext.parallel.params import named_leaves
from maxtext.training.loss import LossFn, LossSums
from maxtext.training.start import trace_step
from maxtext.training.step import split
from tiny import LENGTH, ROWS, Taken, ragged_batch, start_state, take_steps, tiny_setup


def weight_of(params: Model) -> jax.Array:
    return params.decoder.decoder_norm.scale[0]


class LossesInTargets(LossFn):
    """Takes each token's loss from its target, times one weight, which starts at 1."""

    def __call__(self, params: Model, batch: Batch, dropout_key=None) -> LossSums:
        counts = batch.counts
        return LossSums(
            cross_entropy=weight_of(params) * jnp.sum(jnp.where(counts, batch.targets, 0.0)),
            z_loss=jnp.zeros(()),
            tokens=jnp.sum(counts),
        )


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("segments", [[7, 0, 0], [7, 7, 0], [7, 7, 8]])
def test_the_mean_is_over_tokens_not_over_parts(accumulation: int, segments: list[int]) -> None:
    """Token losses [1, 1, 1] and [5] have mean 2; the mean of means would be 3."""
    planes = np.zeros((4, 2, 3), np.int32)
    planes[1] = [[1, 1, 1], [5, *(UNCOUNTED if one else 99 for one in segments[1:])]]
    planes[3] = [[1, 1, 1], segments]
    setup = tiny_setup("opt_type=sgd", f"gradient_accumulation_steps={accumulation}")
    loss_fn = LossesInTargets(setup.architecture, setup.config.compute)
    step = dataclasses.replace(setup.train_step(), loss_fn=loss_fn)
    with use_layout(setup.layout):
        after, metrics = jax.jit(step)(start_state(setup), host_batch(planes), np.float32(1.0))
    assert metrics.loss == metrics.lm_loss == 2.0
    assert metrics.total_weights == 4
    assert metrics.grad_norm == 2.0
    assert weight_of(after.params) == 1.0 - 2.0
    assert after.step == 1


@pytest.fixture(scope="module")
def whole() -> Taken:
    return take_steps(tiny_setup("z_loss_multiplier=1e-3"), ragged_batch())


@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_changes_nothing(accumulation: int, whole: Taken) -> None:
    setup = tiny_setup(
        "z_loss_multiplier=1e-3",
        f"gradient_accumulation_steps={accumulation}",
        f"per_device_batch_size={ROWS // accumulation}",
    )
    got = take_steps(setup, ragged_batch())
    for name, value in named_leaves(got.metrics).items():
        want = named_leaves(whole.metrics)[name]
        np.testing.assert_allclose(value, want, rtol=1e-6, err_msg=name)
    means, want = optax.tree.get(got.state, "mu"), optax.tree.get(whole.state, "mu")
    for mean, other in zip(jax.tree.leaves(means), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mean, other, atol=2e-6 * np.abs(other).max())


def test_metrics_say_what_was_minimized(whole: Taken) -> None:
    metrics = whole.metrics
    assert metrics.total_weights == np.count_nonzero(ragged_batch().segments)
    assert metrics.loss == pytest.approx(metrics.lm_loss + 1e-3 * metrics.z_loss, rel=1e-6)
    assert metrics.z_loss > metrics.lm_loss
    assert metrics.learning_rate == pytest.approx(1e-2)


@pytest.mark.parametrize("tiles", [1, 4])
def test_a_target_that_is_only_read_has_no_weight_and_changes_no_other(tiles: int) -> None:
    setup = tiny_setup(f"num_vocab_tiling={tiles}")
    loss, params, batch = setup.loss_fn(dropout=False), start_state(setup).params, ragged_batch()
    some = np.random.default_rng(1).random(batch.targets.shape) < 0.5
    parts = [
        dataclasses.replace(batch, targets=np.where(counted, batch.targets, np.int32(UNCOUNTED)))
        for counted in (some, ~some)
    ]
    with use_layout(setup.layout):
        one, other, both = map(jax.jit(functools.partial(loss, params)), (*parts, batch))
    for field in dataclasses.fields(LossSums):
        first, second, whole = (getattr(sums, field.name) for sums in (one, other, both))
        assert 0 < first < whole
        np.testing.assert_allclose(first + second, whole, rtol=1e-5, err_msg=field.name)


def test_z_loss_has_the_gradient_of_what_it_adds() -> None:
    setup = tiny_setup()
    loss = setup.loss_fn(dropout=False)
    params, batch = start_state(setup).params, jax.device_put(ragged_batch())
    tokens = np.count_nonzero(batch.segments)

    def mean(params):
        sums = loss(params, batch)
        return (sums.cross_entropy + 0.5 * sums.z_loss) / tokens

    want = optax.tree.norm(jax.jit(jax.grad(mean))(params))
    taken = take_steps(tiny_setup("z_loss_multiplier=0.5"), batch)
    assert taken.metrics.grad_norm == pytest.approx(float(want), rel=1e-5)


def test_z_loss_of_an_all_zero_head_is_the_squared_log_of_the_vocabulary() -> None:
    setup = tiny_setup()
    params = start_state(setup).params
    head = jax.tree.map(jnp.zeros_like, params.decoder.logits_dense)
    decoder = dataclasses.replace(params.decoder, logits_dense=head)
    zero_head = dataclasses.replace(params, decoder=decoder)
    sums = jax.jit(setup.loss_fn(dropout=False))(zero_head, ragged_batch())
    assert sums.cross_entropy / sums.tokens == pytest.approx(math.log(256), rel=1e-6)
    assert sums.z_loss / sums.tokens == pytest.approx(math.log(256) ** 2, rel=1e-6)


def test_padding_has_no_say() -> None:
    batch = ragged_batch()
    padding = batch.segments == 0
    other = dataclasses.replace(
        batch,
        inputs=np.where(padding, 17, batch.inputs),
        targets=np.where(padding, 99, batch.targets),
        positions=np.where(padding, 31, batch.positions),
    )
    setup = tiny_setup()
    loss, params = jax.jit(setup.loss_fn(dropout=False)), start_state(setup).params
    np.testing.assert_array_equal(
        loss(params, batch).cross_entropy, loss(params, other).cross_entropy
    )


def test_a_batch_of_padding_takes_a_finite_step_without_gradient() -> None:
    taken = take_steps(tiny_setup(), empty_batch(ROWS, LENGTH))
    assert (taken.metrics.loss, taken.metrics.grad_norm) == (0.0, 0.0)
    assert taken.metrics.total_weights == 0
    assert all(np.isfinite(leaf).all() for leaf in taken.params.values())


def test_the_loss_falls() -> None:
    batch = ragged_batch()
    first, later = (take_steps(tiny_setup(), batch, steps=n).metrics.loss for n in (1, 10))
    assert later < first - 1


def test_the_gradients_norm_is_that_before_clipping() -> None:
    batch = ragged_batch()
    free = take_steps(tiny_setup(), batch)
    clipped = take_steps(tiny_setup("gradient_clipping_threshold=0.5"), batch)
    assert clipped.metrics.grad_norm == free.metrics.grad_norm > 0.5
    means = (optax.tree.norm(optax.tree.get(one.state, "mu")) for one in (clipped, free))
    assert [float(norm) for norm in means] == pytest.approx(
        [0.1 * 0.5, 0.1 * float(free.metrics.grad_norm)], rel=1e-5
    )


@pytest.mark.parametrize("accumulation", ["1", "2"])
def test_narrow_weights_keep_the_types_of_their_state(accumulation: str) -> None:
    argv = ("weight_dtype=bfloat16", "dtype=bfloat16", "per_device_batch_size=4")
    setup = tiny_setup(*argv, f"gradient_accumulation_steps={accumulation}")
    taken = take_steps(setup, ragged_batch(4 * int(accumulation)), steps=2)
    for leaf, abstract in zip(
        jax.tree.leaves(taken.state), jax.tree.leaves(setup.abstract), strict=True
    ):
        assert leaf.dtype == abstract.dtype
    assert taken.metrics.grad_norm.dtype == np.float32


def test_gradients_of_each_part_are_rounded_and_their_sum_is_not() -> None:
    keys = ("opt_type=sgd", "gradient_accumulation_steps=4", "per_device_batch_size=2")
    whole, narrow = tiny_setup(*keys), tiny_setup(*keys, "grad_dtype=bfloat16")
    before = named_leaves(jax.device_get(start_state(whole).params))
    wide, rounded = (take_steps(setup, ragged_batch()) for setup in (whole, narrow))
    assert rounded.metrics.grad_norm.dtype == np.float32
    assert rounded.metrics.grad_norm == pytest.approx(float(wide.metrics.grad_norm), rel=1e-3)
    assert rounded.metrics.grad_norm != wide.metrics.grad_norm
    # Sums of four numbers of 8 bits, seldom of 8 bits again.
    sums = (before[KERNEL] - rounded.params[KERNEL]) / 1e-2
    assert np.mean(sums != sums.astype(jnp.bfloat16).astype(np.float32)) > 0.5


KERNEL = "decoder/logits_dense/kernel"


def test_frozen_weights_keep_their_bits_and_have_no_gradient() -> None:
    parts = ("gradient_accumulation_steps=2", "per_device_batch_size=4")
    setup = tiny_setup("trainable_parameters_mask=mlp/,norm", *parts)
    before = named_leaves(jax.device_get(start_state(setup).params))
    taken = take_steps(setup, ragged_batch(), steps=2)
    for name, leaf in taken.params.items():
        frozen = "mlp/" not in name and "norm" not in name
        assert np.array_equal(leaf, before[name]) == frozen, name
    everything = take_steps(tiny_setup(), ragged_batch())
    one = take_steps(setup, ragged_batch())
    assert one.metrics.loss == pytest.approx(float(everything.metrics.loss), rel=1e-6)
    moments = everything.state.opt_state["adamw"].mu.decoder.groups["layers"].mlp
    kept = one.state.opt_state["adamw"].mu.decoder.groups["layers"].mlp
    for got, want in zip(jax.tree.leaves(kept), jax.tree.leaves(moments), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())
    want = np.sqrt(
        sum(np.sum(leaf**2) for leaf in jax.tree.leaves(one.state.opt_state["adamw"].mu))
    )
    assert one.metrics.grad_norm == pytest.approx(want / (1 - 0.9), rel=1e-5)


def test_rate_and_length_of_a_run_are_no_part_of_its_program() -> None:
    programs = {
        trace_step(tiny_setup(*argv)).lower().as_text()
        for argv in ((), ("steps=77", "learning_rate=3e-3", "lr_schedule_type=wsd"))
    }
    assert len(programs) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ("ici_fsdp_parallelism=4",),
        ("ici_data_parallelism=2", "ici_fsdp_parallelism=2", "shard_optimizer_over_data=true"),
    ],
)
def test_each_weight_and_moment_stays_where_it_lies(argv: tuple[str, ...]) -> None:
    setup = tiny_setup(*argv, "ici_tensor_parallelism=2", devices=8)
    taken = take_steps(setup, ragged_batch())
    for leaf, abstract in zip(
        jax.tree.leaves(taken.state), jax.tree.leaves(setup.abstract), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(abstract.sharding, leaf.ndim)


def test_parts_of_a_batch_have_rows_that_their_device_holds_already() -> None:
    setup = tiny_setup("ici_fsdp_parallelism=4", "ici_data_parallelism=2", devices=8)
    batch = ragged_batch(32)
    with use_layout(setup.layout):
        placed = jax.device_put(batch, setup.batch_sharding((32, LENGTH)))
        program = jax.jit(lambda whole: split(whole, 4)).lower(placed).compile()
        parts = program(placed)
    np.testing.assert_array_equal(parts.inputs[1], batch.inputs[1::4])
    assert parts.inputs.sharding.shard_shape(parts.inputs.shape) == (4, 1, LENGTH)
    text = program.as_text()
    assert not [word for word in ("all-", "collective", "reduce-scatter") if word in text]


DROPOUT = ("dropout_rate=0.2", "init_weights_seed=5")


@pytest.fixture(scope="module")
def dropped() -> Taken:
    return take_steps(tiny_setup(*DROPOUT), ragged_batch())


def test_dropout_changes_the_loss(dropped: Taken) -> None:
    without = take_steps(tiny_setup("init_weights_seed=5"), ragged_batch())
    assert abs(dropped.metrics.loss - without.metrics.loss) > 1e-3


def test_dropout_is_the_same_in_every_run(dropped: Taken) -> None:
    again = take_steps(tiny_setup(*DROPOUT), ragged_batch())
    assert again.metrics.loss == dropped.metrics.loss


@pytest.mark.parametrize("mesh", ["ici_fsdp_parallelism=8", "ici_tensor_parallelism=2"])
def test_dropout_is_the_same_on_every_mesh(mesh: str, dropped: Taken) -> None:
    other = take_steps(tiny_setup(*DROPOUT, mesh, devices=8), ragged_batch())
    assert other.metrics.loss == pytest.approx(dropped.metrics.loss, rel=1e-6)
    assert other.metrics.grad_norm == pytest.approx(dropped.metrics.grad_norm, rel=1e-5)


@pytest.mark.parametrize("how", ["scan_layers=false", "remat_policy=none"])
def test_dropout_is_the_same_however_layers_run(how: str, dropped: Taken) -> None:
    other = take_steps(tiny_setup(*DROPOUT, how), ragged_batch())
    assert other.metrics.loss == pytest.approx(dropped.metrics.loss, rel=1e-6)
    assert other.metrics.grad_norm == pytest.approx(dropped.metrics.grad_norm, rel=1e-5)


def test_dropout_differs_from_step_to_step(dropped: Taken) -> None:
    still = (*DROPOUT, "learning_rate=0", "adam_weight_decay=0")
    second = take_steps(tiny_setup(*still), ragged_batch(), steps=2)
    assert abs(second.metrics.loss - dropped.metrics.loss) > 1e-4


def test_dropout_is_off_in_evaluation_and_where_it_is_disabled() -> None:
    assert tiny_setup(*DROPOUT).loss_fn(dropout=False).dropout_rate == 0.0
    disabled = tiny_setup(*DROPOUT, "enable_dropout=false")
    assert disabled.loss_fn(dropout=True).dropout_rate == 0.0

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from maxtext.config.load import load
from maxtext.optim.optimizer import decay_mask, optimizer
from maxtext.parallel.params import named_leaves
from tiny import tiny_setup

RATE = 0.1
B1, B2, EPS, DECAY = 0.9, 0.95, 1e-8, 0.1


def transform(*argv: str) -> optax.GradientTransformation:
    return optimizer(load(argv, {}).config.optimizer, lambda step: RATE / (step + 1))


def adamw_in_float64(weights: dict, grads: list[dict], *, clip: float) -> dict:
    """Three lines of the paper, with clipping before them."""
    mu = {name: np.zeros_like(weight) for name, weight in weights.items()}
    nu = {name: np.zeros_like(weight) for name, weight in weights.items()}
    for step, grad in enumerate(grads):
        norm = np.sqrt(sum(np.sum(one**2) for one in grad.values()))
        shrink = min(1.0, clip / norm) if clip else 1.0
        for name, weight in weights.items():
            g = grad[name] * shrink
            mu[name] = B1 * mu[name] + (1 - B1) * g
            nu[name] = B2 * nu[name] + (1 - B2) * g**2
            m, v = mu[name] / (1 - B1 ** (step + 1)), nu[name] / (1 - B2 ** (step + 1))
            decay = DECAY * weight if name == "kernel" else 0.0
            weights = {
                **weights,
                name: weight - RATE / (step + 1) * (m / (np.sqrt(v) + EPS) + decay),
            }
    return weights


@pytest.mark.parametrize("clip", [0.0, 2.0, 1e6])
def test_three_steps_of_adamw_equal_a_float64_reference(clip: float) -> None:
    random = np.random.default_rng(0)
    shapes = {"kernel": (3, 5), "scale": (5,), "bias": (2,)}
    weights = {name: random.normal(size=shape) for name, shape in shapes.items()}
    grads = [
        {name: size * random.normal(size=shape) for name, shape in shapes.items()}
        for size in (3.0, 0.1, 1.0)
    ]
    chain = transform(f"gradient_clipping_threshold={clip}")
    params = jax.tree.map(jnp.float32, weights)
    state = chain.init(params)
    for grad in grads:
        updates, state = chain.update(jax.tree.map(jnp.float32, grad), state, params)
        params = optax.apply_updates(params, updates)
    want = adamw_in_float64(weights, grads, clip=clip)
    for name, weight in want.items():
        np.testing.assert_allclose(params[name], weight, rtol=2e-6, atol=2e-7, err_msg=name)


def test_the_state_has_the_same_tree_with_and_without_clipping() -> None:
    weights = {"kernel": jnp.ones((3, 5))}
    clipped, free = (
        jax.tree.structure(transform(f"gradient_clipping_threshold={clip}").init(weights))
        for clip in (1.0, 0.0)
    )
    assert clipped == free


def test_norms_and_biases_do_not_decay_and_all_else_does() -> None:
    setup = tiny_setup("use_qk_norm=true")
    mask = named_leaves(decay_mask(setup.abstract.params))
    assert {name for name, decays in mask.items() if not decays} == {
        "decoder/layers/pre_self_attention_layer_norm/scale",
        "decoder/layers/post_self_attention_layer_norm/scale",
        "decoder/layers/self_attention/query_norm/scale",
        "decoder/layers/self_attention/key_norm/scale",
        "decoder/decoder_norm/scale",
    }
    assert mask["token_embedder/embedding"]


@pytest.mark.parametrize(
    ("argv", "mu_dtype", "nu_dtype"),
    [
        ((), "float32", "float32"),
        (("mu_dtype=bfloat16",), "bfloat16", "float32"),
        (("weight_dtype=bfloat16",), "bfloat16", "bfloat16"),
        (("weight_dtype=bfloat16", "mu_dtype=float32"), "float32", "bfloat16"),
    ],
)
def test_moments_have_the_types_that_are_asked_for(
    argv: tuple[str, ...], mu_dtype: str, nu_dtype: str
) -> None:
    state = tiny_setup(*argv).abstract.opt_state
    for moment, dtype in (("mu", mu_dtype), ("nu", nu_dtype)):
        leaves = jax.tree.leaves(optax.tree.get(state, moment))
        assert {str(leaf.dtype) for leaf in leaves} == {dtype}, moment


@pytest.mark.parametrize("clip", ["0", "1"])
def test_moments_lie_as_their_weights_and_counters_everywhere(clip: str) -> None:
    argv = ("ici_fsdp_parallelism=4", "ici_tensor_parallelism=2")
    setup = tiny_setup(*argv, f"gradient_clipping_threshold={clip}", devices=8)
    weights = named_leaves(setup.abstract.params)
    state = setup.abstract.opt_state
    for moment in ("mu", "nu"):
        leaves = named_leaves(optax.tree.get(state, moment))
        assert leaves.keys() == weights.keys()
        for name, leaf in leaves.items():
            assert leaf.sharding == weights[name].sharding, name
            assert leaf.shape == weights[name].shape, name
    rest = len(jax.tree.leaves(state)) - 2 * len(weights)
    scalars = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == ()]
    assert len(scalars) == rest > 0
    assert all(leaf.sharding.is_fully_replicated for leaf in scalars)

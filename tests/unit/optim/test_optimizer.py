"""Every optimizer against its paper's equations, layer by layer, in float64."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn.initializers import zeros

from maxtext.config.load import load
from maxtext.optim.optimizer import Optimizer, Updated, decay_mask, global_norm, optimizer
from maxtext.parallel.params import Param, named_leaves, select
from tiny import start_state, tiny_setup
from unit.optim.test_momentum import by_svd

RATES = (0.1, 0.05, 0.02)
# Two layers; kernels that sum over one and over two dims, tall and wide.
SPECS = {
    "query": {"kernel": ((2, 6, 2, 4), ("layers", "embed", "heads", "kv"), 1, 1)},
    "out": {"kernel": ((2, 2, 4, 6), ("layers", "heads", "kv", "embed"), 2, 1)},
    "query_bias": {"bias": ((2, 2, 4), ("layers", "heads", "kv"), 0, 1)},
    "norm": {"scale": ((2, 6), ("layers", "norm"), 0, 1)},
    "embedder": {"embedding": ((10, 6), ("vocab", "embed"), 1, 0)},
}
SPECS = {
    name: {
        leaf: Param(shape, axes, zeros, jnp.float32, num_in, num_stacked)
        for leaf, (shape, axes, num_in, num_stacked) in inner.items()
    }
    for name, inner in SPECS.items()
}
ARGV = {
    "adamw": ("adam_weight_decay=0.1", "adam_eps=1e-3", "adam_eps_root=1e-4"),
    "adafactor": ("adafactor_weight_decay=0.1",),
    "muon": ("muon_weight_decay=0.2", "adam_weight_decay=0.1", "muon_beta=0.8"),
    "muon, as large as adamw": ("opt_type=muon", "muon_consistent_rms=0.2"),
    "lion": ("lion_weight_decay=0.3", "lion_b1=0.8", "lion_b2=0.7"),
    "sgd": ("sgd_weight_decay=0.1", "sgd_momentum=0.9"),
    "sgd without momentum": ("opt_type=sgd",),
}


def argv_of(case: str) -> tuple[str, ...]:
    return (f"opt_type={case.split()[0].rstrip(',')}", *ARGV[case][case not in OPTIMIZERS :])


OPTIMIZERS = ("adamw", "adafactor", "muon", "lion", "sgd")


def make(*argv: str, specs: Any = SPECS) -> Optimizer:
    return optimizer(load(argv, {}).config.optimizer, specs)


def draw(seed: int, scale: float = 1.0) -> dict[str, dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return {
        name: {leaf: scale * random.normal(size=spec.shape) for leaf, spec in inner.items()}
        for name, inner in SPECS.items()
    }


def float32(tree: Any) -> Any:
    return jax.tree.map(jnp.float32, tree)


def taken(chain: Optimizer, weights: Any, grads: list[Any]) -> tuple[Any, Updated]:
    params, update = float32(weights), jax.jit(chain.update)
    state, updated = chain.init(params), None
    for grad, rate in zip(grads, RATES, strict=True):
        updated = update(float32(grad), state, params, rate=jnp.float32(rate), loss=jnp.ones(()))
        params, state = updated.params, updated.opt_state
    assert updated is not None
    return params, updated


def single(spec: Param, *arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The arrays' parts for each layer, a matrix as two dims, all else as one."""
    own = spec.shape[spec.num_stacked :]
    split = (int(np.prod(own[: spec.num_in])), int(np.prod(own[spec.num_in :])))
    shape = split if spec.num_in else split[1:]
    yield from zip(*(x.reshape(-1, *shape) for x in arrays), strict=True)


@dataclasses.dataclass
class Reference:
    """The equations for one weight of one layer, with whatever they keep."""

    config: Any
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)

    def moment(self, name: str, decay: float, value: np.ndarray, *, part: float) -> np.ndarray:
        self.kept[name] = decay * self.kept.get(name, 0.0) + part * value
        return self.kept[name]

    def adamw(self, g: np.ndarray, w: np.ndarray, t: int) -> np.ndarray:
        b1, b2 = self.config.adam_b1, self.config.adam_b2
        m = self.moment("m", b1, g, part=1 - b1) / (1 - b1**t)
        v = self.moment("v", b2, g**2, part=1 - b2) / (1 - b2**t)
        return m / (np.sqrt(v + self.config.adam_eps_root) + self.config.adam_eps)

    def adafactor(self, g: np.ndarray, w: np.ndarray, t: int) -> np.ndarray:
        b2 = 1 - t**-0.8
        square = g**2 + 1e-30
        if g.ndim == 2:
            r = self.moment("r", b2, square.sum(axis=1), part=1 - b2)
            c = self.moment("c", b2, square.sum(axis=0), part=1 - b2)
            v = np.outer(r, c) / r.sum()
        else:
            v = self.moment("v", b2, square, part=1 - b2)
        u = g / np.sqrt(v)
        u = u / max(1.0, np.sqrt(np.mean(u**2)))
        return u * max(1e-3, np.sqrt(np.mean(w**2)))

    def muon(self, g: np.ndarray, w: np.ndarray, t: int) -> np.ndarray:
        beta, rms = self.config.muon_beta, self.config.muon_consistent_rms
        m = self.moment("m", beta, g, part=1.0)
        rows, columns = g.shape
        scale = rms * np.sqrt(max(rows, columns)) if rms else np.sqrt(max(1.0, columns / rows))
        return scale * by_svd(g + beta * m)

    def lion(self, g: np.ndarray, w: np.ndarray, t: int) -> np.ndarray:
        b1, b2 = self.config.lion_b1, self.config.lion_b2
        c = b1 * self.kept.get("m", 0.0) + (1 - b1) * g
        self.moment("m", b2, g, part=1 - b2)
        return np.sign(c)

    def sgd(self, g: np.ndarray, w: np.ndarray, t: int) -> np.ndarray:
        return self.moment("m", self.config.sgd_momentum, g, part=1.0)


def in_float64(argv: tuple[str, ...], weights: Any, grads: list[Any], *, clip: float) -> Any:
    config = load(argv, {}).config.optimizer
    result: dict[str, dict[str, np.ndarray]] = {}
    norms = [np.sqrt(sum(np.sum(g**2) for g in jax.tree.leaves(grad))) for grad in grads]
    for name, inner in SPECS.items():
        for leaf, spec in inner.items():
            kind = config.opt_type
            if kind == "muon" and (not spec.num_in or name == "embedder"):
                kind = "adamw"
            decay = {"muon": config.muon_weight_decay, "adamw": config.adam_weight_decay}.get(kind)
            decay = getattr(config, f"{kind}_weight_decay") if decay is None else decay
            decay = decay if leaf in ("kernel", "embedding") else 0.0
            layers = []
            for w, *own in single(spec, weights[name][leaf], *(g[name][leaf] for g in grads)):
                reference, weight = Reference(config), w
                for step, g in enumerate(own):
                    shrunk = g * (min(1.0, clip / norms[step]) if clip else 1.0)
                    direction = getattr(reference, kind)(shrunk, weight, step + 1)
                    weight = weight - RATES[step] * (direction + decay * weight)
                layers.append(weight)
            result.setdefault(name, {})[leaf] = np.stack(layers).reshape(spec.shape)
    return result


@pytest.mark.parametrize("clip", [0.0, 2.0])
@pytest.mark.parametrize("case", ARGV)
def test_three_steps_equal_the_papers_equations(case: str, clip: float) -> None:
    argv = (*argv_of(case), f"gradient_clipping_threshold={clip}")
    weights, grads = draw(0), [draw(1, 3.0), draw(2, 0.1), draw(3)]
    got, _ = taken(make(*argv), weights, grads)
    want = named_leaves(in_float64(argv, weights, grads, clip=clip))
    for name, leaf in named_leaves(got).items():
        np.testing.assert_allclose(leaf, want[name], rtol=1e-5, atol=3e-6, err_msg=name)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_without_a_gradient_weights_stay_finite_and_only_decay(kind: str) -> None:
    decay = ("adam", "muon") if kind == "muon" else ("adam" if kind == "adamw" else kind,)
    chain = make(f"opt_type={kind}", *(f"{name}_weight_decay=0.5" for name in decay))
    weights, nothing = draw(0), jax.tree.map(np.zeros_like, draw(0))
    got, _ = taken(chain, weights, [nothing] * 3)
    left = np.prod([1 - 0.5 * rate for rate in RATES])
    before = named_leaves(float32(weights))
    for name, leaf in named_leaves(got).items():
        decays = name.split("/")[-1] in ("kernel", "embedding")
        np.testing.assert_allclose(leaf, before[name] * (left if decays else 1.0), rtol=1e-6)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_frozen_weights_keep_their_bits_and_have_no_state(kind: str) -> None:
    chain = make(f"opt_type={kind}", "trainable_parameters_mask=^out,norm,embedder")
    weights = draw(0)
    grads = [select(draw(seed), chain.trainable) for seed in (1, 2, 3)]
    got, updated = taken(chain, weights, grads)
    before = named_leaves(float32(weights))
    for name, leaf in named_leaves(got).items():
        frozen = name.startswith("query")
        assert np.array_equal(leaf, before[name]) == frozen, name
    names = [name for name in named_leaves(updated.opt_state) if "query" in name]
    assert names == []
    want = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(grads[-1])))
    assert updated.grad_norm == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_spike_leaves_weights_and_state_as_they_were(kind: str) -> None:
    chain = make(
        f"opt_type={kind}",
        "skip_step_on_spikes=true",
        "skip_step_interval=2",
        *(("sgd_momentum=0.9",) if kind == "sgd" else ()),
    )
    params, grads = float32(draw(0)), float32(draw(1))
    state, update = chain.init(params), jax.jit(chain.update)
    one = {"rate": jnp.float32(0.1)}
    for step, loss in enumerate((1.0, 1.1, 9.0)):
        before, opt_before = params, state
        updated = update(grads, state, params, loss=jnp.float32(loss), **one)
        params, state = updated.params, updated.opt_state
        assert updated.skipped == (step == 2)
    kept = {name: value for name, value in opt_before.items() if name != "spikes"}
    for new, old in ((params, before), (state, kept)):
        for name, leaf in named_leaves(old).items():
            np.testing.assert_array_equal(leaf, named_leaves(new)[name], err_msg=name)
    assert state["spikes"].count == 3
    after = update(grads, state, params, loss=jnp.float32(1.0), **one)
    assert not after.skipped
    assert not np.array_equal(after.params["norm"]["scale"], params["norm"]["scale"])


def test_a_gradient_that_is_no_number_is_skipped_with_all_that_came_of_it() -> None:
    chain = make("skip_step_on_spikes=true")
    params, grads = float32(draw(0)), float32(draw(1))
    grads["norm"]["scale"] = grads["norm"]["scale"].at[0, 0].set(jnp.nan)
    state = chain.init(params)
    rate, loss = jnp.float32(0.1), jnp.float32(1.0)
    updated = jax.jit(chain.update)(grads, state, params, rate=rate, loss=loss)
    assert updated.skipped
    for name, leaf in named_leaves((updated.params, updated.opt_state)).items():
        np.testing.assert_array_equal(leaf, named_leaves((params, state))[name], err_msg=name)


def test_the_state_has_the_same_tree_with_and_without_clipping() -> None:
    clipped, free = (
        jax.tree.structure(make(f"gradient_clipping_threshold={clip}").init(float32(draw(0))))
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


def test_muon_takes_the_matrices_within_layers_and_adamw_the_rest() -> None:
    state = named_leaves(tiny_setup("opt_type=muon").abstract.opt_state)
    layers = "decoder/layers"
    kernels = ("self_attention/" + name for name in ("query", "key", "value", "out"))
    kernels = (*kernels, "mlp/wi_0", "mlp/wi_1", "mlp/wo")
    assert {name.removeprefix("muon/mu/") for name in state if name.startswith("muon")} == {
        f"{layers}/{name}/kernel" for name in kernels
    }
    assert {name.removeprefix("adamw/nu/") for name in state if name.startswith("adamw/nu")} == {
        "token_embedder/embedding",
        "decoder/logits_dense/kernel",
        "decoder/decoder_norm/scale",
        f"{layers}/pre_self_attention_layer_norm/scale",
        f"{layers}/post_self_attention_layer_norm/scale",
    }


@pytest.mark.parametrize(
    ("argv", "moments"),
    [
        ((), {"mu": "float32", "nu": "float32"}),
        (("mu_dtype=bfloat16",), {"mu": "bfloat16", "nu": "float32"}),
        (("weight_dtype=bfloat16",), {"mu": "bfloat16", "nu": "bfloat16"}),
        (("weight_dtype=bfloat16", "mu_dtype=float32"), {"mu": "float32", "nu": "bfloat16"}),
        (("opt_type=muon", "mu_dtype=bfloat16"), {"mu": "bfloat16", "nu": "float32"}),
        (("opt_type=lion", "mu_dtype=bfloat16"), {"mu": "bfloat16"}),
        (("opt_type=sgd", "sgd_momentum=0.9", "mu_dtype=bfloat16"), {"mu": "bfloat16"}),
        (
            ("opt_type=adafactor", "weight_dtype=bfloat16"),
            {"rows": "float32", "vectors": "float32"},
        ),
    ],
)
def test_moments_have_the_types_that_are_asked_for(
    argv: tuple[str, ...], moments: dict[str, str]
) -> None:
    state = named_leaves(tiny_setup(*argv).abstract.opt_state)
    for moment, dtype in moments.items():
        types = {str(leaf.dtype) for name, leaf in state.items() if f"/{moment}/" in name}
        assert types == {dtype}, moment


def test_the_update_of_narrow_weights_is_reckoned_in_float32_and_rounded_once() -> None:
    chain = make("opt_type=sgd", "sgd_weight_decay=0.1", "gradient_clipping_threshold=0")
    weights, grads = jax.tree.map(jnp.bfloat16, draw(0)), float32(draw(1))
    rate, loss = jnp.float32(0.3), jnp.float32(1.0)
    got = chain.update(grads, chain.init(weights), weights, rate=rate, loss=loss).params
    for name, leaf in named_leaves(got).items():
        before = np.asarray(named_leaves(weights)[name], np.float64)
        decay = 0.1 * before if name.split("/")[-1] in ("kernel", "embedding") else 0.0
        want = before - 0.3 * (np.asarray(named_leaves(grads)[name], np.float64) + decay)
        assert leaf.dtype == jnp.bfloat16
        wrong = np.asarray(leaf, np.float32) != want.astype(np.float32).astype(jnp.bfloat16)
        assert wrong.mean() < 0.02, name


def test_the_norm_of_narrow_weights_is_not_narrow() -> None:
    tree = {"a": jnp.full((1000,), 1.0, jnp.bfloat16), "b": jnp.full((7,), 1e20, jnp.bfloat16)}
    assert global_norm({"a": tree["a"]}) == pytest.approx(np.sqrt(1000), rel=1e-6)
    assert global_norm({"a": tree["a"]}).dtype == jnp.float32
    assert global_norm({}) == 0.0


MESH = ("ici_data_parallelism=2", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2")
OVER_DATA = (*MESH, "shard_optimizer_over_data=true")


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_lies_as_its_weight_and_counters_everywhere(kind: str) -> None:
    setup = tiny_setup(f"opt_type={kind}", *MESH, devices=8)
    weights = named_leaves(setup.abstract.params)
    for name, leaf in named_leaves(setup.abstract.opt_state).items():
        weight = next((weights[one] for one in weights if name.endswith(one)), None)
        if weight is None:
            assert leaf.sharding.is_fully_replicated, name
            assert leaf.shape == (), name
            continue
        parts = weight.sharding.shard_shape(weight.shape)
        want = [1 if own == 1 else part for own, part in zip(leaf.shape, parts, strict=True)]
        assert leaf.sharding.shard_shape(leaf.shape) == tuple(want), name


def test_state_split_over_data_takes_half_where_a_dim_divides() -> None:
    setup, whole = (tiny_setup(*argv, devices=8) for argv in (OVER_DATA, MESH))
    want = named_leaves(whole.abstract)
    for name, leaf in named_leaves(setup.abstract).items():
        parts = [one.sharding.shard_shape(one.shape) for one in (leaf, want[name])]
        sizes = [int(np.prod(part)) for part in parts]
        halved = name.startswith("opt_state") and leaf.shape != ()
        assert sizes[0] * (2 if halved else 1) == sizes[1], name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_mesh_takes_the_same_step_and_keeps_the_same_state(kind: str) -> None:
    keys = (f"opt_type={kind}", *(("sgd_momentum=0.9",) if kind == "sgd" else ()))
    got, want = (
        one_update(tiny_setup(*keys, *argv, devices=devices))
        for argv, devices in ((OVER_DATA, 8), ((), 1))
    )
    for name, leaf in named_leaves(want).items():
        bound = 1e-6 * np.abs(leaf).max()
        if kind == "lion" and name.startswith("params"):
            bound = 1e-6
        np.testing.assert_allclose(
            named_leaves(got)[name], leaf, rtol=2e-5, atol=bound, err_msg=name
        )


def test_splitting_the_state_over_data_changes_no_bit_of_adamw() -> None:
    split, whole = (
        named_leaves(one_update(tiny_setup(*argv, devices=8))) for argv in (OVER_DATA, MESH)
    )
    for name, leaf in whole.items():
        np.testing.assert_array_equal(split[name], leaf, err_msg=name)


def one_update(setup) -> Any:
    """Weights and state after a step whose gradient is drawn, all of them on the setup's mesh."""
    state, step = start_state(setup), setup.train_step()
    random = np.random.default_rng(0)
    drawn = jax.tree.map(lambda p: random.normal(size=p.shape).astype(np.float32), state.params)
    grads = jax.device_put(drawn, step.shardings.params)

    def update(grads: Any, state: Any) -> Any:
        grads = jax.lax.with_sharding_constraint(grads, step.update_shardings)
        rate, loss = jnp.float32(0.01), jnp.float32(1.0)
        done = setup.optimizer.update(grads, state.opt_state, state.params, rate=rate, loss=loss)
        return {"params": done.params, "opt_state": done.opt_state}

    out = {"params": step.shardings.params, "opt_state": step.shardings.opt_state}
    return jax.device_get(jax.jit(update, out_shardings=out)(grads, state))

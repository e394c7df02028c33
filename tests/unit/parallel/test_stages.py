import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.parallel.params import named_leaves
from maxtext.parallel.stages import PROJECTIONS, Stages, run_layers, stages_from_config, unstack
from tiny import ragged_batch, start_state, tiny_setup

POLICIES = [
    "full",
    "minimal",
    "minimal_offloaded",
    "save_qkv_proj",
    "qkv_proj_offloaded",
    "save_out_proj",
    "custom",
    "none",
]
CUSTOM = ("attention_out=device", "mlpwi_0=device", "mlpwi_1=offload", "mlpwo=device")
# Products of one layer: q, k, v, scores, their sum of values, out, wi_0, wi_1, wo. The backward
# pass has two for each, the scores once more (attention keeps none), and on top those forward ones
# that it needs anew; never wo.
FORWARD, RECOMPUTED = (
    9,
    {
        "full": 8,
        "minimal": 2,  # scores and sum of values
        "minimal_offloaded": 2,
        "save_qkv_proj": 5,
        "qkv_proj_offloaded": 5,
        "save_out_proj": 7,
        "custom": 4,  # q, k, v, out
        "none": 0,
    },
)
HEAD, SCORES = 3, 1


def arguments(policy: str) -> tuple[str, ...]:
    return (f"remat_policy={policy}", *(CUSTOM if policy == "custom" else ()))


def gradients(*argv: str):
    setup = tiny_setup(*argv)
    loss = setup.loss_fn(dropout=False)
    return jax.value_and_grad(lambda params, batch: loss(params, batch).cross_entropy), setup


def count_products(jaxpr) -> int:
    """Products in a program, those of a loop's body once."""
    found = 0
    for equation in jaxpr.eqns:
        found += equation.primitive.name == "dot_general"
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                found += count_products(getattr(inner, "jaxpr", inner))
    return found


def is_jaxpr(value: object) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scan", [True, False])
def test_a_remat_policy_recomputes_what_it_says(policy: str, scan: bool) -> None:
    function, setup = gradients(*arguments(policy), f"scan_layers={str(scan).lower()}")
    batch = setup.abstract_batch((8, 32))
    products = count_products(jax.make_jaxpr(function)(setup.abstract.params, batch).jaxpr)
    layers = 1 if scan else 2
    assert products == HEAD + layers * (3 * FORWARD + SCORES + RECOMPUTED[policy])


@pytest.mark.parametrize("policy", ["full", "save_out_proj", "none"])
def test_the_compiler_keeps_what_an_unrolled_stack_recomputes(policy: str) -> None:
    function, setup = gradients(*arguments(policy), "scan_layers=false")
    batch = setup.abstract_batch((8, 32))
    text = jax.jit(function).lower(setup.abstract.params, batch).compile().as_text()
    assert text.count(" dot(") == HEAD + 2 * (3 * FORWARD + RECOMPUTED[policy])


@pytest.fixture(scope="module")
def reference():
    function, setup = gradients("remat_policy=none", "scan_layers=false")
    return jax.jit(function)(start_state(setup).params, ragged_batch())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_remat_policy_gives_the_same_loss_and_gradient(policy: str, reference) -> None:
    function, setup = gradients(*arguments(policy), "scan_layers=true")
    loss, grads = jax.jit(function)(start_state(setup).params, ragged_batch())
    want = named_leaves(reference[1])
    np.testing.assert_allclose(loss, reference[0], rtol=1e-6)
    for name, grad in named_leaves(grads).items():
        np.testing.assert_allclose(
            grad, want[name], atol=2e-6 * np.abs(want[name]).max(), err_msg=name
        )


def test_an_unrolled_stack_with_remat_gives_the_same_gradient(reference) -> None:
    function, setup = gradients("remat_policy=full", "scan_layers=false")
    _, grads = jax.jit(function)(start_state(setup).params, ragged_batch())
    want = named_leaves(reference[1])
    for name, grad in named_leaves(grads).items():
        np.testing.assert_allclose(
            grad, want[name], atol=2e-6 * np.abs(want[name]).max(), err_msg=name
        )


QKV = {"query_proj", "key_proj", "value_proj"}


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        # The backward pass never asks for the last projection.
        (("remat_policy=minimal_offloaded",), {*PROJECTIONS} - {"mlpwo"}),
        (("remat_policy=qkv_proj_offloaded",), QKV),
        (("remat_policy=custom", "out_proj=offload", "mlpwi_0=device"), {"out_proj"}),
        (("remat_policy=minimal",), set()),
    ],
)
def test_what_is_offloaded_goes_to_the_host(argv: tuple[str, ...], names: set[str]) -> None:
    function, setup = gradients(*argv)
    # A processor has one memory, so that what is compiled for it shows none of this.
    batch = setup.abstract_batch((8, 32))
    text = str(jax.make_jaxpr(function)(setup.abstract.params, batch))
    assert set(re.findall(r"name\[name=(\w+)\]\s+\w+\s+\w+:f32<host>", text)) == names


@pytest.mark.parametrize("scan", [True, False])
def test_layers_run_in_order_each_with_its_slice(scan: bool) -> None:
    weights = np.asarray([2.0, 3.0, 5.0], np.float32)
    extras = np.asarray([1.0, 10.0, 100.0], np.float32)
    x = np.ones((1, 1, 1), np.float32)
    out = run_layers(Stages(scan=scan), [lambda w, y, extra: w * y + extra], weights, x, extras)
    assert out.item() == ((1 * 2 + 1) * 3 + 10) * 5 + 100


def chain(weights: np.ndarray) -> float:
    """What `test_a_cycle_goes_on_to_the_last_layer` makes of 1."""
    x = 1.0
    for place, weight in enumerate(weights):
        x = weight * x + 10.0 ** (place % 3)
    return x


@pytest.mark.parametrize("stages", [Stages(), Stages(remat=True), Stages(scan=False, remat=True)])
@pytest.mark.parametrize("size", [2, 6, 7])
def test_a_cycle_goes_on_to_the_last_layer(size: int, stages: Stages) -> None:
    cycle = [lambda w, y, _, plus=plus: w * y + plus for plus in (1, 10, 100)]
    weights, x = np.arange(2.0, 2.0 + size), np.ones((1, 1, 1), np.float32)
    run = lambda w: run_layers(stages, cycle, w, x, None).sum()  # noqa: E731
    value, slopes = jax.jit(jax.value_and_grad(run))(jnp.asarray(weights))
    assert value == chain(weights)
    want = [chain(weights + one) - chain(weights) for one in np.eye(size)]
    np.testing.assert_allclose(slopes, want, rtol=1e-6)


def test_a_loop_takes_whole_cycles_and_no_more() -> None:
    cycle = [lambda w, y, _: w * y] * 3
    weights, x = np.ones(8, np.float32), np.ones((1, 1, 1), np.float32)
    run = lambda w: run_layers(Stages(scan=True), cycle, w, x, None)  # noqa: E731
    program = jax.make_jaxpr(run)(weights).jaxpr
    (loop,) = (one for one in program.eqns if one.primitive.name == "scan")
    assert loop.params["length"] == 2
    assert sum(one.primitive.name == "mul" for one in program.eqns) == 2


@pytest.mark.parametrize("scan", [True, False])
def test_a_stack_may_have_nothing_but_weights(scan: bool) -> None:
    x = np.ones((1, 1, 1), np.float32)
    weights = np.asarray([2.0, 3.0], np.float32)
    assert run_layers(Stages(scan=scan), [lambda w, y, _: w * y], weights, x, None).item() == 6


def test_unstack_gives_one_tree_a_layer() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    slices = unstack({"w": np.arange(6).reshape(3, 2), "key": keys})
    assert [one["w"].tolist() for one in slices] == [[0, 1], [2, 3], [4, 5]]
    assert all(one["key"] == key for one, key in zip(slices, keys, strict=True))


def stages_of(*argv: str) -> Stages:
    return stages_from_config(load(argv, {}).config.compute)


def test_the_config_chooses_what_is_saved() -> None:
    assert stages_of("remat_policy=full") == Stages(scan=True, remat=True, saved=())
    assert stages_of("remat_policy=none", "scan_layers=false") == Stages(scan=False, remat=False)
    assert stages_of("remat_policy=minimal").saved == PROJECTIONS
    custom = stages_of("remat_policy=custom", "attention_out=device", "key_proj=offload")
    assert custom == Stages(remat=True, saved=("attention_out",), offloaded=("key_proj",))
    assert stages_of("remat_policy=minimal_offloaded").offloaded == PROJECTIONS

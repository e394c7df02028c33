import jax
import numpy as np
import pytest

from maxtext.parallel.layout import use_layout
from maxtext.parallel.params import named_leaves
from maxtext.training.state import fresh_state, state_from_params
from tiny import start_state, tiny_setup

MESH = ("ici_fsdp_parallelism=4", "ici_tensor_parallelism=2")


@pytest.mark.parametrize("argv", [(), ("logits_via_embedding=true", "weight_dtype=bfloat16")])
def test_a_fresh_state_has_the_numbers_of_one_device_and_lies_as_declared(
    argv: tuple[str, ...],
) -> None:
    setup = tiny_setup(*MESH, *argv, devices=8)
    with use_layout(setup.layout):
        state = fresh_state(setup.specs, setup.optimizer, setup.abstract, seed=0)
    want, declared = named_leaves(start_state(tiny_setup(*argv))), named_leaves(setup.abstract)
    for name, leaf in named_leaves(state).items():
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(want[name]), err_msg=name)
        assert leaf.sharding == declared[name].sharding, name
        assert leaf.dtype == declared[name].dtype, name


def test_another_seed_gives_other_weights() -> None:
    first, second = (
        start_state(tiny_setup(f"init_weights_seed={seed}")).params.token_embedder.embedding
        for seed in (0, 1)
    )
    assert not np.any(np.asarray(first) == np.asarray(second))


def test_given_weights_start_at_step_zero_with_a_new_optimizer() -> None:
    setup = tiny_setup(*MESH, devices=8)
    fresh = start_state(setup)
    with use_layout(setup.layout):
        state = state_from_params(fresh.params, setup.optimizer, setup.abstract)
    assert state.step == 0
    assert state.params is fresh.params
    for leaf, want in zip(
        jax.tree.leaves(state.opt_state), jax.tree.leaves(fresh.opt_state), strict=True
    ):
        np.testing.assert_array_equal(leaf, want)
        assert leaf.sharding == want.sharding

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.ops import dropout as op
from maxtext.types import Array, Float, PRNGKeyArray


def dropout(
    x: Float[Array, "B *D"], key: PRNGKeyArray | None, *, rate: float
) -> Float[Array, "B *D"]:
    """Of rows that are numbered from zero."""
    return op.dropout(x, key, rate=rate, rows=jnp.arange(x.shape[0]))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_part_and_keeps_the_mean(rate: float) -> None:
    x = jnp.full((64, 32, 64), 3.0)
    got = np.asarray(jax.jit(lambda x, key: dropout(x, key, rate=rate))(x, jax.random.key(0)))
    zeroed = np.mean(got == 0)
    sigma = np.sqrt(rate * (1 - rate) / x.size)
    assert abs(zeroed - rate) < 5 * sigma
    np.testing.assert_allclose(got[got != 0], 3.0 / (1 - rate), rtol=1e-6)


def test_dropout_is_independent_between_keys_rows_and_channels() -> None:
    x = jnp.ones((128, 256))
    first, second = (np.asarray(dropout(x, jax.random.key(k), rate=0.5)) / 2 for k in (0, 1))
    for one, other in ((first, second), (first[:-1], first[1:]), (first[:, :-1], first[:, 1:])):
        assert abs(np.mean(one * other) - 0.25) < 0.02


def test_what_is_zeroed_in_a_row_does_not_depend_on_the_others() -> None:
    x, key = jnp.ones((8, 4, 16)), jax.random.key(0)
    rows = jnp.asarray([6, 1, 3])
    some = op.dropout(x[rows], key, rate=0.5, rows=rows)
    np.testing.assert_array_equal(some, dropout(x, key, rate=0.5)[rows])


def test_without_a_key_or_a_rate_nothing_changes() -> None:
    x = jnp.ones((4, 4))
    assert dropout(x, None, rate=0.5) is x
    assert dropout(x, jax.random.key(0), rate=0.0) is x


def test_the_gradient_goes_through_what_is_kept_alone() -> None:
    x, key = jnp.ones((8, 8)), jax.random.key(0)
    grad = jax.grad(lambda x: dropout(x, key, rate=0.25).sum())(x)
    np.testing.assert_array_equal(grad, dropout(x, key, rate=0.25))


def test_the_type_stays() -> None:
    assert dropout(jnp.ones((4, 4), jnp.bfloat16), jax.random.key(0), rate=0.5).dtype == "bfloat16"

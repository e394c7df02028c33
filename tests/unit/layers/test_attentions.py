import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext.layers import attentions
from maxtext.layers.attentions import training_attend
from maxtext.ops.attention import AttentionPattern, dot_product_attention
from maxtext.parallel.layout import use_layout
from maxtext.parallel.rows import WHOLE, RowSplit
from tiny import tiny_setup

PATTERN = AttentionPattern(scale=0.3, window=9)
REPLICATED = "logical_axis_rules={kv_heads: [], activation_kv_heads: []}"


@pytest.fixture
def flash_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a kernel that XLA cannot split, around an op that runs here."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")

    def kernel(*operands: jax.Array, pattern: AttentionPattern, split: RowSplit) -> jax.Array:
        assert split == WHOLE
        return dot_product_attention(*operands, pattern=pattern)

    monkeypatch.setattr(attentions.flash_attention, "splash_flash_attention", kernel)


@pytest.mark.usefixtures("flash_on_cpu")
@pytest.mark.parametrize(
    ("kv_heads", "mesh"),
    [
        (2, ("ici_tensor_parallelism=2",)),
        (8, ("ici_tensor_parallelism=8",)),
        (2, ("ici_tensor_parallelism=4", REPLICATED)),
        (2, ("ici_tensor_parallelism=8", REPLICATED)),
        (1, ("ici_tensor_parallelism=4", REPLICATED)),
        (2, ("ici_fsdp_parallelism=8",)),
    ],
)
def test_flash_gives_each_device_the_kv_heads_of_its_query_heads(
    kv_heads: int, mesh: tuple[str, ...]
) -> None:
    setup = tiny_setup(*mesh, f"base_num_kv_heads={kv_heads}", devices=8)
    compute = setup.config.compute.model_copy(update={"attention": "flash"})
    random = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(random.normal(size=(8, 32, heads, 8)), jnp.float32)
        for heads in (8, kv_heads, kv_heads)
    )
    segments = jnp.asarray(random.integers(0, 2, (8, 32)).cumsum(axis=1), jnp.int32)

    def total(attend, q: jax.Array, k: jax.Array, v: jax.Array):
        out = attend(q, k, v, PATTERN)
        return jnp.sum(out**2), out

    value = functools.partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    plain = lambda q, k, v, pattern: dot_product_attention(q, k, v, segments, pattern=pattern)  # noqa: E731
    want = jax.jit(value(functools.partial(total, plain)))(q, k, v)
    with use_layout(setup.layout):
        got = jax.jit(value(functools.partial(total, training_attend(compute, segments))))(q, k, v)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)

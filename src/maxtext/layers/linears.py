"""Dense layers and the gated feed-forward layer."""

import functools
import math

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.nn.initializers import variance_scaling, zeros

from maxtext.config.schema import ModelConfig
from maxtext.ops.dense import dense
from maxtext.parallel.layout import Axes, constrain
from maxtext.parallel.params import param, pytree
from maxtext.types import Array, DType, Float, Initializer, Weight

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "linear": lambda x: x,
}


@pytree
class Linear:
    """Weights of a dense layer; most have no bias."""

    kernel: Weight
    bias: Weight | None = None


def kernel_init(scale: float, num_in: int) -> Initializer:
    """Truncated normal numbers of variance scale / fan-in, the first `num_in` dims being in."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: DType) -> jax.Array:
        flat = (math.prod(shape[:num_in]), math.prod(shape[num_in:]))
        draw = variance_scaling(scale, "fan_in", "truncated_normal")
        return draw(key, flat, dtype).reshape(shape)

    return init


def linear_params(
    shape: tuple[int, ...],
    axes: Axes,
    *,
    scale: float,
    dtype: DType,
    num_in: int = 1,
    bias: bool = False,
) -> Linear:
    """Declares the weights of `linear`; the first `num_in` dims of `shape` are summed over."""
    return Linear(
        kernel=param(shape, axes, kernel_init(scale, num_in), dtype, num_in=num_in),
        bias=param(shape[num_in:], axes[num_in:], zeros, dtype) if bias else None,
    )


def linear(params: Linear, x: jax.Array, *, num_in: int = 1) -> jax.Array:
    """`x` with its last `num_in` dims times the kernel, plus the bias, in the type of `x`."""
    out: jax.Array = dense(  # pyright: ignore[reportAssignmentType]
        x, params.kernel.astype(x.dtype), num_in
    )
    return out if params.bias is None else out + params.bias.astype(x.dtype)


@pytree
class Mlp:
    """Weights of a gated feed-forward layer; `wi_1` is None where it has no gate."""

    wi_0: Linear
    wi_1: Linear | None
    wo: Linear


def mlp_params(config: ModelConfig, *, dtype: DType) -> Mlp:
    """Declares the weights of `mlp`."""
    declare = functools.partial(linear_params, scale=config.dense_init_scale, dtype=dtype)
    wide = declare((config.emb_dim, config.mlp_dim), ("embed", "mlp"))
    gated = len(config.mlp_activations) == 2
    narrow = declare((config.mlp_dim, config.emb_dim), ("mlp", "embed"))
    return Mlp(wi_0=wide, wi_1=wide if gated else None, wo=narrow)


def mlp(
    params: Mlp, x: Float[Array, "B L D"], *, activations: tuple[str, ...]
) -> Float[Array, "B L D"]:
    """The product of activations[i](x wi_i), times wo.

    Source: Shazeer 2020, arXiv:2002.05202, equation 6.
    """
    x = constrain(x, "activation_batch", "activation_length", "activation_embed")
    hidden = ACTIVATIONS[activations[0]](_project(params.wi_0, x, "mlpwi_0"))
    if params.wi_1 is not None:
        hidden = hidden * ACTIVATIONS[activations[1]](_project(params.wi_1, x, "mlpwi_1"))
    out = linear(params.wo, hidden)
    out = constrain(out, "activation_batch", "activation_norm_length", "activation_embed")
    return checkpoint_name(out, "mlpwo")


def _project(params: Linear, x: jax.Array, name: str) -> jax.Array:
    hidden = linear(params, x)
    hidden = constrain(hidden, "activation_batch", "activation_length", "activation_mlp")
    return checkpoint_name(hidden, name)

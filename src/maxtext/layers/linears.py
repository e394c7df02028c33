"""Dense layers and the gated feed-forward layer."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.nn.initializers import variance_scaling, zeros

from maxtext.config.schema import ModelConfig
from maxtext.ops.dense import dense
from maxtext.parallel.layout import Axes, constrain
from maxtext.parallel.params import Param, param, pytree
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
    out = dense(x, params.kernel.astype(x.dtype), num_in)
    return out if params.bias is None else out + params.bias.astype(x.dtype)


def join(parts: Sequence[jax.Array]) -> jax.Array:
    """Arrays side by side in groups: what `split` takes apart.

    The last but one dim of the last part counts groups. Of it, the same dim of the other parts is
    a multiple, and each group gets its share of them in order: query heads [..., K * G, N], keys
    and values [..., K, N] become [..., K, G + 2, N].
    """
    groups = parts[-1].shape[-2]
    apart = [x.reshape(*x.shape[:-2], groups, -1, x.shape[-1]) for x in parts]
    return jnp.concatenate(apart, axis=-2)


def split(joined: jax.Array, parts: int) -> tuple[jax.Array, ...]:
    """The arrays that `join` joined, all but the first having one entry in each group."""
    *lead, groups, size, width = joined.shape
    sizes = (size - parts + 1, *(1,) * (parts - 1))
    apart = jax.lax.split(joined, sizes, axis=joined.ndim - 2)
    return tuple(x.reshape(*lead, groups * n, width) for x, n in zip(apart, sizes, strict=True))


def join_specs(parts: Sequence[Param]) -> Param:
    """The declaration of what `join` makes of declared weights, which lies as the last of them."""
    last = parts[-1]
    *lead, groups, width = last.shape
    size = sum(one.shape[-2] for one in parts) // groups
    return dataclasses.replace(
        last,
        shape=(*lead, groups, size, width),
        axes=(*last.axes[:-1], None, last.axes[-1]),
        init=_joined_later,
    )


def _joined_later(key: jax.Array, shape: tuple[int, ...], dtype: DType) -> jax.Array:
    raise AssertionError("weights are drawn apart, under their own names, and joined then")


def join_linears(parts: Sequence[Linear], join: Callable[[Sequence[Any]], Any] = join) -> Linear:
    """Dense layers of one input as one; `join` is for the leaves that they hold."""
    biases = [one.bias for one in parts]
    bias = None if any(one is None for one in biases) else join(biases)
    return Linear(kernel=join([one.kernel for one in parts]), bias=bias)


def split_linear(joined: Linear, parts: int) -> tuple[Linear, ...]:
    """The dense layers that `join_linears` joined; None, which is no leaf, stays."""
    leaves = (joined.kernel, joined.bias)
    apart = [(None,) * parts if leaf is None else split(leaf, parts) for leaf in leaves]
    return tuple(Linear(kernel=k, bias=b) for k, b in zip(*apart, strict=True))


@pytree
class Mlp:
    """Weights of a gated feed-forward layer; `wi_1` is None where it has no gate."""

    wi_0: Linear
    wi_1: Linear | None
    wo: Linear


@pytree
class FusedMlp:
    """The same with both input projections in one kernel [embed, 2, mlp]."""

    wi: Linear
    wo: Linear


type AnyMlp = Mlp | FusedMlp


def mlp_params(config: ModelConfig, *, dtype: DType) -> Mlp:
    """Declares the weights of `mlp`."""
    declare = functools.partial(linear_params, scale=config.dense_init_scale, dtype=dtype)
    wide = declare((config.emb_dim, config.mlp_dim), ("embed", "mlp"))
    gated = len(config.mlp_activations) == 2
    narrow = declare((config.mlp_dim, config.emb_dim), ("mlp", "embed"))
    return Mlp(wi_0=wide, wi_1=wide if gated else None, wo=narrow)


def mlp(
    params: AnyMlp, x: Float[Array, "B L D"], *, activations: tuple[str, ...]
) -> Float[Array, "B L D"]:
    """The product of activations[i](x wi_i), times wo.

    Source: Shazeer 2020, arXiv:2002.05202, equation 6.
    """
    x = constrain(x, "activation_batch", "activation_length", "activation_embed")
    wide = zip(activations, _projections(params, x), strict=True)
    hidden = functools.reduce(jnp.multiply, [ACTIVATIONS[name](one) for name, one in wide])
    out = linear(params.wo, hidden)
    out = constrain(out, "activation_batch", "activation_norm_length", "activation_embed")
    return checkpoint_name(out, "mlpwo")


def _projections(params: AnyMlp, x: jax.Array) -> list[jax.Array]:
    """What each activation is applied to."""
    axes = ("activation_batch", "activation_length", "activation_mlp")
    if isinstance(params, FusedMlp):
        both = constrain(linear(params.wi, x), *axes[:2], None, axes[2])
        wide = split(both, 2)
    else:
        wide = (linear(one, x) for one in (params.wi_0, params.wi_1) if one is not None)
    named = zip(wide, ("mlpwi_0", "mlpwi_1"), strict=False)
    return [checkpoint_name(constrain(one, *axes), name) for one, name in named]

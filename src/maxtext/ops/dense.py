"""The product of activations and a kernel."""

import functools

import jax
import jax.numpy as jnp

from maxtext.parallel.params import pytree
from maxtext.types import DType, Weight


@pytree
class Turned:
    """A kernel that lies the other way round, with the dims that are summed over last.

    In the forward pass XLA:CPU takes products with few tokens up to twice as fast so: it splits
    the rows over its threads, and copies none of them. A tied embedding is a head that lies so.
    """

    rows: Weight

    def astype(self, dtype: DType) -> "Turned":
        """The same in another type."""
        return Turned(rows=self.rows.astype(dtype))


def dense(x: jax.Array, kernel: jax.Array | Turned, num_in: int = 1) -> jax.Array:
    """`x` with its last `num_in` dims times the first `num_in` dims of the kernel."""
    if not isinstance(kernel, Turned):
        out: jax.Array = _dense(x, kernel, num_in)  # pyright: ignore[reportAssignmentType]
        return out
    rows = kernel.rows
    out_dims = rows.ndim - num_in
    x = jnp.moveaxis(x, range(-num_in, 0), range(num_in))
    # Else XLA makes one of both transpositions again, of which this is the slow one.
    x = jax.lax.optimization_barrier(x)
    out = jax.lax.dot_general(rows, x, ((range(out_dims, rows.ndim), range(num_in)), ((), ())))
    return jnp.moveaxis(out, range(out_dims), range(-out_dims, 0))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dense(x: jax.Array, kernel: jax.Array, num_in: int) -> jax.Array:
    """`dense`, whose gradients are what autodiff gives, with operands in the forward pass's order.

    Autodiff swaps them, which XLA:CPU answers with a transposed copy of the larger one, and less
    than half the speed.
    """
    return jnp.tensordot(x, kernel, num_in)


def _forward(
    x: jax.Array, kernel: jax.Array, num_in: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.tensordot(x, kernel, num_in), (x, kernel)


def _backward(
    num_in: int, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    batch, out = tuple(range(x.ndim - num_in)), tuple(range(x.ndim - num_in, grad.ndim))
    kernel_out = tuple(range(num_in, kernel.ndim))
    grad_x = jax.lax.dot_general(grad, kernel, ((out, kernel_out), ((), ())))
    grad_kernel = jax.lax.dot_general(x, grad, ((batch, batch), ((), ())))
    return grad_x, grad_kernel


_dense.defvjp(_forward, _backward)

"""The product of activations and a kernel."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dense(x: jax.Array, kernel: jax.Array, num_in: int = 1) -> jax.Array:
    """`x` with its last `num_in` dims times the first `num_in` dims of the kernel.

    The gradients are what autodiff gives, with operands in the order of the forward pass:
    autodiff swaps them, which XLA:CPU answers with a transposed copy of the larger one, and less
    than half the speed.
    """
    return jnp.tensordot(x, kernel, num_in)


def _forward(
    x: jax.Array, kernel: jax.Array, num_in: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return dense(x, kernel, num_in), (x, kernel)


def _backward(
    num_in: int, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    batch, out = tuple(range(x.ndim - num_in)), tuple(range(x.ndim - num_in, grad.ndim))
    kernel_out = tuple(range(num_in, kernel.ndim))
    grad_x = jax.lax.dot_general(grad, kernel, ((out, kernel_out), ((), ())))
    grad_kernel = jax.lax.dot_general(x, grad, ((batch, batch), ((), ())))
    return grad_x, grad_kernel


dense.defvjp(_forward, _backward)

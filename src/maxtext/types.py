"""Array types and the one legend of axis letters.

B batch, L length (of queries), S length of keys, D embed, F mlp, H query heads,
K kv heads, G query heads of one kv head (H = K * G), N head dim, V vocab, E experts.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

# A leaf of a weight tree. The same tree shape carries arrays, specs or shardings, so only
# the static checker is told that it is an array.
if TYPE_CHECKING:
    Weight = jax.Array
else:
    Weight = Any

type DType = jax.typing.DTypeLike
type Initializer = Callable[[PRNGKeyArray, tuple[int, ...], DType], jax.Array]

__all__ = ["Array", "Bool", "DType", "Float", "Initializer", "Int", "PRNGKeyArray", "Weight"]

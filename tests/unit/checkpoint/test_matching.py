import jax
import pytest

from maxtext.checkpoint.errors import CheckpointMismatch
from maxtext.checkpoint.matching import require_match


def saved(**shapes: tuple[int, ...]) -> dict[str, dict[str, object]]:
    return {name: {"shape": list(shape), "dtype": "float32"} for name, shape in shapes.items()}


def wanted(dtype: str = "float32", **shapes: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}


def test_equal_arrays_match_in_any_order() -> None:
    require_match(saved(a=(2,), b=()), wanted(b=(), a=(2,)), where="here")


def test_each_difference_is_a_line() -> None:
    with pytest.raises(CheckpointMismatch) as caught:
        require_match(saved(a=(2,), b=(3, 4), c=()), wanted(b=(4, 3), c=(), d=(1,)), where="here")
    assert str(caught.value).splitlines() == [
        "here is not of this model: 3 of 4 arrays differ",
        "  checkpoint has b float32[3,4], this run wants float32[4,3]",
        "  checkpoint has no d, this run wants float32[1]",
        "  checkpoint has a float32[2], this run has no such array",
    ]


def test_another_type_is_refused_with_the_key_that_takes_it() -> None:
    with pytest.raises(CheckpointMismatch) as caught:
        require_match(saved(a=(2,)), wanted("bfloat16", a=(2,)), where="here")
    assert str(caught.value).splitlines()[1:] == [
        "  checkpoint has a float32[2], this run wants bfloat16[2]",
        "  only the types differ: weight_dtype=float32 takes it as it is",
    ]


def test_another_type_of_the_moments_is_refused_with_their_own_key() -> None:
    name = "opt_state/adamw/mu/w"
    there = {name: {"shape": [2], "dtype": "float32"}}
    here = {name: jax.ShapeDtypeStruct((2,), "bfloat16")}
    with pytest.raises(CheckpointMismatch, match="mu_dtype=float32 takes it as it is"):
        require_match(there, here, where="here")


def test_another_optimizer_is_told_from_another_model() -> None:
    names = ("opt_state/adamw/count", "opt_state/sgd/mu/w")
    there, here = (saved(**{name: ()}) for name in names)
    with pytest.raises(CheckpointMismatch, match="only the optimizer's state differs: load_p"):
        require_match(there, wanted(**dict.fromkeys(here, ())), where="here")


def test_ten_differences_are_shown_and_the_rest_counted() -> None:
    many = {f"w{n}": (n,) for n in range(1, 24)}
    with pytest.raises(CheckpointMismatch) as caught:
        require_match(saved(**many), wanted(), where="here")
    lines = str(caught.value).splitlines()
    assert len(lines) == 12
    assert lines[-1] == "  and 13 more"

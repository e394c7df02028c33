import jax
import numpy as np
import pytest

from maxtext.config.load import load
from maxtext.parallel.layout import Layout
from maxtext.parallel.mesh import make_layout
from maxtext.parallel.rows import RowSplit, check_length, row_split


def layout(*argv: str) -> Layout:
    return make_layout(load(argv, {}).config.mesh, jax.devices())


def test_a_device_holds_an_early_and_a_late_chunk() -> None:
    split = RowSplit(axes=("context",), ways=3, balanced=True)
    assert split.held.tolist() == [[0, 5], [1, 4], [2, 3]]
    row = np.arange(12)[None]
    got = split.reordered(jax.numpy.asarray(row))
    assert got.tolist() == [[0, 1, 10, 11, 2, 3, 8, 9, 4, 5, 6, 7]]
    assert split.places(12).tolist() == got[0].tolist()
    assert (split.restored(got) == row).all()


def test_rows_that_are_not_balanced_stay_in_order() -> None:
    split = RowSplit(axes=("context",), ways=3)
    assert split.held.tolist() == [[0], [1], [2]]
    row = jax.numpy.arange(12)[None]
    assert split.reordered(row) is row


def test_the_rules_say_which_axes_split_a_row() -> None:
    assert row_split(None) == row_split(layout()) == RowSplit()
    context = ("ici_context_parallelism=4", "ici_fsdp_parallelism=2")
    assert row_split(layout(*context)) == RowSplit(("context",), 4, balanced=True)
    ordered = layout(*context, "context_parallel_load_balance=false")
    assert row_split(ordered) == RowSplit(("context",), 4, balanced=False)
    gathered = layout(*context, "logical_axis_rules={attn_activation_length: []}")
    assert row_split(gathered) == RowSplit()


@pytest.mark.parametrize(
    ("argv", "length", "says"),
    [
        (("ici_context_parallelism=4",), 36, "context 4 takes .* of 8 tokens; use 32 or 40"),
        (("ici_context_parallelism=4",), 4, "context 4 takes .* of 8 tokens; use 8$"),
        (
            ("ici_context_parallelism=2", "ici_tensor_sequence_parallelism=4"),
            30,
            "context 2 x tensor_sequence 4 takes .* of 8 tokens; use 24 or 32",
        ),
        (
            ("ici_context_parallelism=4", "context_parallel_load_balance=false"),
            30,
            "context 4 takes .* of 4 tokens; use 28 or 32",
        ),
    ],
)
def test_rows_that_do_not_divide_are_refused_with_lengths_that_do(
    argv: tuple[str, ...], length: int, says: str
) -> None:
    with pytest.raises(ValueError, match=f"^max_target_length={length}: {says}"):
        check_length(layout(*argv), length)


def test_rows_that_divide_are_taken() -> None:
    check_length(layout("ici_context_parallelism=4"), 40)
    check_length(layout("ici_context_parallelism=4", "context_parallel_load_balance=false"), 36)
    check_length(layout("ici_tensor_parallelism=4"), 31)

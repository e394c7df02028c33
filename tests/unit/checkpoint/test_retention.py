import math

import pytest

from maxtext.checkpoint.retention import Retention, best_steps

LOSSES = {100: 3.0, 200: 2.0, 300: 2.5, 400: None, 500: 2.0, 600: math.nan, 700: 9.0}


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(-1), [100, 200, 300, 400, 500, 600, 700]),
        (Retention(2), [600, 700]),
        (Retention(1, period=300), [300, 600, 700]),
        (Retention(1, best=1), [200, 700]),
        (Retention(1, best=3), [200, 300, 500, 700]),
        (Retention(1, period=400, best=2), [200, 400, 500, 700]),
        (Retention(9), [100, 200, 300, 400, 500, 600, 700]),
    ],
)
def test_a_step_stays_that_any_rule_wants(retention, kept) -> None:
    doomed = retention.doomed(LOSSES)
    assert sorted({*LOSSES} - {*doomed}) == kept
    assert doomed == sorted(doomed)


def test_of_equal_losses_the_oldest_step_is_best() -> None:
    assert best_steps(LOSSES, 2) == [200, 500]
    assert best_steps(LOSSES, 99) == [200, 500, 300, 100, 700]
    assert best_steps({1: None, 2: math.inf}, 1) == []

import pytest

from maxtext.metrics.goodput import PARTS, Goodput, percentages


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_each_moment_counts_once_for_the_innermost_block() -> None:
    clock = Clock()
    goodput = Goodput(clock)
    clock.now += 1
    with goodput.during("startup"):
        clock.now += 2
        with goodput.during("checkpoint"):
            clock.now += 4
        clock.now += 8
    with goodput.during("steps"):
        clock.now += 16
        with goodput.during("input_wait"):
            clock.now += 32
        # Asked in the middle, as after a signal.
        assert goodput.seconds()["steps"] == 16
        clock.now += 64
    assert goodput.seconds() == dict.fromkeys(PARTS, 0) | {
        "startup": 10,
        "checkpoint": 4,
        "steps": 80,
        "input_wait": 32,
        "other": 1,
    }
    assert sum(goodput.seconds().values()) == clock.now - 50


def test_a_block_that_fails_counts_too() -> None:
    clock = Clock()
    goodput = Goodput(clock)

    def fail() -> None:
        clock.now += 3
        raise KeyError

    with pytest.raises(KeyError), goodput.during("steps"):
        fail()
    clock.now += 1
    assert (goodput.seconds()["steps"], goodput.seconds()["other"]) == (3, 1)


@pytest.mark.parametrize("seconds", [(1, 1, 1), (1, 2, 4), (999.96, 0.04, 0), (1, 1, 1e-9)])
def test_what_is_shown_adds_up_to_a_hundred(seconds) -> None:
    shown = percentages(dict(zip("abc", seconds, strict=True)))
    assert sum(round(10 * share) for share in shown.values()) == 1000
    for share, exact in zip(shown.values(), seconds, strict=True):
        assert share == pytest.approx(100 * exact / sum(seconds), abs=0.1)

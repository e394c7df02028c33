import math

import pytest

from maxtext.config.load import load
from maxtext.optim.schedules import schedule


def rates(*argv: str, steps: int, count: int) -> list[float]:
    config = load(["learning_rate=1e-3", f"steps={steps}", *argv], {}).config
    rate = schedule(config.optimizer, steps=config.training.steps)
    return [float(rate(step)) for step in range(count)]


def test_step_n_of_ten_warm_up_steps_has_n_tenths_of_the_rate() -> None:
    got = rates("warmup_steps_fraction=0.1", steps=100, count=11)
    assert got == pytest.approx([n * 1e-4 for n in range(11)], rel=1e-6, abs=1e-12)


def test_the_cosine_is_half_way_in_the_middle_and_ends_at_its_fraction() -> None:
    got = rates(
        "warmup_steps_fraction=0.1", "learning_rate_final_fraction=0.1", steps=100, count=130
    )
    assert got[10] == pytest.approx(1e-3)
    assert got[55] == pytest.approx((1e-3 + 1e-4) / 2)
    for step in range(10, 101):
        part = (1 + math.cos(math.pi * (step - 10) / 90)) / 2
        assert got[step] == pytest.approx(1e-4 + 9e-4 * part, rel=1e-5), step
    assert got[100:] == pytest.approx([1e-4] * 30)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert rates("warmup_steps_fraction=0", steps=10, count=1) == pytest.approx([1e-3])


def test_a_constant_schedule_stays_after_warm_up() -> None:
    got = rates("lr_schedule_type=constant", "warmup_steps_fraction=0.4", steps=10, count=30)
    assert got[:5] == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3])
    assert got[5:] == pytest.approx([1e-3] * 25)


def test_the_schedule_may_have_a_length_of_its_own() -> None:
    longer = rates("learning_rate_schedule_steps=200", steps=100, count=100)
    assert longer == pytest.approx(rates(steps=200, count=100))


def test_the_schedule_does_not_depend_on_accumulation() -> None:
    assert rates("gradient_accumulation_steps=4", steps=50, count=50) == rates(steps=50, count=50)

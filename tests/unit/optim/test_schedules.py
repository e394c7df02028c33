import math

import pytest

from maxtext.config.load import load
from maxtext.optim.schedules import schedule


def rates(*argv: str, steps: int, count: int) -> list[float]:
    config = load(["learning_rate=1e-3", f"steps={steps}", *argv], {}).config
    rate = schedule(config.optimizer, steps=config.training.steps)
    return [rate(step) for step in range(count)]


def test_step_n_of_ten_warm_up_steps_has_n_tenths_of_the_rate() -> None:
    got = rates("warmup_steps_fraction=0.1", steps=100, count=11)
    assert got == pytest.approx([n * 1e-4 for n in range(11)], rel=1e-12)


def test_the_cosine_is_half_way_in_the_middle_and_ends_at_its_fraction() -> None:
    got = rates(
        "warmup_steps_fraction=0.1", "learning_rate_final_fraction=0.1", steps=100, count=130
    )
    assert got[10] == pytest.approx(1e-3)
    assert got[55] == pytest.approx((1e-3 + 1e-4) / 2)
    for step in range(10, 101):
        part = (1 + math.cos(math.pi * (step - 10) / 90)) / 2
        assert got[step] == pytest.approx(1e-4 + 9e-4 * part), step
    assert got[100:] == pytest.approx([1e-4] * 30)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert rates("warmup_steps_fraction=0", steps=10, count=1) == pytest.approx([1e-3])


def test_a_constant_schedule_stays_after_warm_up() -> None:
    got = rates("lr_schedule_type=constant", "warmup_steps_fraction=0.4", steps=10, count=30)
    assert got[:5] == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3])
    assert got[5:] == pytest.approx([1e-3] * 25)


WSD = ("lr_schedule_type=wsd", "warmup_steps_fraction=0.2", "wsd_decay_steps_fraction=0.4")
# Ten steps: two of warm-up, four at the full rate, four down to a tenth; in thousandths of it.
LINEAR = [0, 500, 1000, 1000, 1000, 1000, 1000, 775, 550, 325, 100, 100, 100]
COSINE = [
    *LINEAR[:7],
    100 + 900 * (1 + math.sqrt(0.5)) / 2,
    550,
    100 + 900 * (1 - math.sqrt(0.5)) / 2,
    100,
    100,
    100,
]


@pytest.mark.parametrize(("style", "want"), [("linear", LINEAR), ("cosine", COSINE)])
def test_wsd_warms_up_stays_and_falls(style: str, want: list[float]) -> None:
    got = rates(*WSD, f"wsd_decay_style={style}", steps=10, count=13)
    assert got == pytest.approx([1e-6 * one for one in want])


@pytest.mark.parametrize(
    ("argv", "want"),
    [
        (("warmup_steps_fraction=0", "wsd_decay_steps_fraction=0"), [1000] * 12),
        (
            ("warmup_steps_fraction=0", "wsd_decay_steps_fraction=1"),
            [*(1000 - 90 * n for n in range(11)), 100],
        ),
        (
            ("warmup_steps_fraction=0.5", "wsd_decay_steps_fraction=0.5"),
            [0, 200, 400, 600, 800, 1000, 820, 640, 460, 280, 100, 100],
        ),
    ],
)
def test_parts_of_wsd_may_be_empty(argv: tuple[str, ...], want: list[float]) -> None:
    got = rates("lr_schedule_type=wsd", *argv, steps=10, count=12)
    assert got == pytest.approx([1e-6 * one for one in want])


def test_a_stopped_wsd_run_may_go_on_longer_without_a_jump() -> None:
    short, long = (
        rates(*WSD, steps=100, count=60),
        rates(
            "lr_schedule_type=wsd",
            "warmup_steps_fraction=0.1",
            "wsd_decay_steps_fraction=0.2",
            steps=200,
            count=60,
        ),
    )
    assert short == pytest.approx(long)


@pytest.mark.parametrize("kind", ["cosine", "wsd", "constant"])
def test_a_schedule_of_one_step_has_a_rate(kind: str) -> None:
    (rate,) = rates(f"lr_schedule_type={kind}", steps=1, count=1)
    assert rate == pytest.approx(1e-3)


def test_the_schedule_may_have_a_length_of_its_own() -> None:
    longer = rates("learning_rate_schedule_steps=200", steps=100, count=100)
    assert longer == pytest.approx(rates(steps=200, count=100))


def test_the_schedule_does_not_depend_on_accumulation() -> None:
    assert rates("gradient_accumulation_steps=4", steps=50, count=50) == rates(steps=50, count=50)

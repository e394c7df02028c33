import jax
import numpy as np
import pytest

from maxtext.optim.spikes import SpikeFilter


def judged(rule: SpikeFilter, losses: list[float], norms: list[float] | None = None) -> list[bool]:
    history, found = rule.init(), []
    judge = jax.jit(rule.judge)
    for loss, norm in zip(losses, norms or [1.0] * len(losses), strict=True):
        history, spike = judge(history, np.float32(loss), np.float32(norm))
        found.append(bool(spike))
    return found


def in_float64(rule: SpikeFilter, losses: list[float], norms: list[float]) -> list[bool]:
    found = []
    for step in range(len(losses)):
        high = False
        for values in (losses, norms):
            past = np.asarray(values[max(0, step - rule.interval) : step], np.float64)
            if len(past) >= max(2, rule.interval // 2):
                bound = past.mean() + rule.factor * past.std(ddof=1)
                high |= bool(values[step] > bound)
        found.append(high)
    return found


@pytest.mark.parametrize(("interval", "factor"), [(8, 2.0), (5, 1.5), (2, 3.0), (64, 2.5)])
def test_spikes_are_those_of_a_rolling_mean_and_deviation(interval: int, factor: float) -> None:
    random = np.random.default_rng(interval)
    losses = list(3.0 + random.normal(size=40))
    norms = list(np.exp(random.normal(size=40)))
    rule = SpikeFilter(interval, factor)
    want = in_float64(rule, losses, norms)
    assert judged(rule, losses, norms) == want
    assert any(want)


def test_the_first_steps_are_never_spikes() -> None:
    assert judged(SpikeFilter(8, 2.0), [1, 1.1, 0.9, 100, 1, 1, 1, 1000])[:4] == [False] * 4


def test_a_spike_of_the_gradient_alone_is_one() -> None:
    norms = [1, 1.1, 0.9, 1, 50]
    assert judged(SpikeFilter(4, 6.0), [1, 1.1, 0.9, 1, 1], norms) == [False] * 4 + [True]


def test_a_fall_is_no_spike() -> None:
    assert not any(judged(SpikeFilter(4, 2.0), [5, 5.1, 4.9, 5, 0.1, 0.1]))


def test_a_new_level_is_learnt() -> None:
    found = judged(SpikeFilter(4, 2.0), [1, 1.1, 0.9, 1, *[5 + 0.1 * (n % 2) for n in range(8)]])
    assert found[4]
    assert not any(found[-4:])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_a_spike_from_the_first_and_is_forgotten(bad: float) -> None:
    rule = SpikeFilter(4, 3.0)
    plain = [1, 1.1, 0.9, 1, 1.05, 9]
    with_bad = [bad, 1, 1.1, bad, 0.9, 1, 1.05, bad, 9]
    found = judged(rule, with_bad)
    assert [one for one, loss in zip(found, with_bad, strict=True) if loss == bad or loss != loss]
    kept = [one for one, loss in zip(found, with_bad, strict=True) if np.isfinite(loss)]
    assert kept == judged(rule, plain) == [False] * 5 + [True]
    assert found[0]
    assert found[3]
    assert judged(rule, [1.0] * 3, [1.0, bad, 1.0])[1]

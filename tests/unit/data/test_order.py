"""Which document comes when: exact weights, every process its share, and other processes later."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from maxtext.data.batch import Shard
from maxtext.data.mixing import Schedule
from maxtext.data.order import Order

WEIGHTS = [(1,), (3, 7), (1, 1, 1), (50, 30, 15, 5), (1, 1, 1, 1, 1, 1, 13), (97, 2, 1)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_after_every_draw_each_source_is_within_one_of_its_share(weights):
    schedule = Schedule([Fraction(one, 10) for one in weights])
    total, counts = sum(weights), [0] * len(weights)
    for draw in range(2 * total + 3):
        assert schedule.counts(draw) == counts
        source, number = schedule.draw(draw)
        assert number == counts[source]
        assert schedule.index(source, number) == draw
        counts[source] += 1
        far = [
            abs(n - Fraction(draw + 1) * w / total) for n, w in zip(counts, weights, strict=True)
        ]
        assert max(far) < 1
    big = 10**15 * total
    assert schedule.counts(big) == [10**15 * one for one in weights]
    assert schedule.draw(big + 1)[0] == schedule.draw(1)[0]


def order(sizes=(5, 8), weights=(1, 3), *, seed=0, epochs=None, shard=(0, 1), dealt=()):
    return Order(
        sizes,
        [Fraction(one) for one in weights],
        shuffle_seed=seed,
        num_epochs=epochs,
        shard=Shard(*shard),
        dealt=dealt,
    )


def test_each_source_has_epochs_and_an_order_of_its_own():
    places = [order()[index] for index in range(120)]
    for source, size, epochs in ((0, 5, 6), (1, 8, 11)):
        numbers = [number for one, number in places if one == source][: size * epochs]
        rounds = [tuple(numbers[start : start + size]) for start in range(0, size * epochs, size)]
        assert all(sorted(one) == list(range(size)) for one in rounds)
        assert len(set(rounds)) > 1
    alike = order(sizes=(8, 8), weights=(1, 1))
    firsts = [[alike[index][1] for index in range(start, 16, 2)] for start in (0, 1)]
    assert firsts[0] != firsts[1], "two sources of one size"


def test_with_an_end_the_stream_ends_with_the_source_that_ends_first():
    short = order(sizes=(4, 100), weights=(1, 3), seed=None, epochs=2)
    places = [short[index] for index in range(len(short))]
    assert [number for source, number in places if source == 0] == [0, 1, 2, 3] * 2
    assert len(places) - 8 in (24, 25, 26)


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_have_different_documents_and_each_the_whole_mixture(processes):
    parts = [order(sizes=(12, 36), epochs=1, shard=(n, processes)) for n in range(processes)]
    places = [[part[index] for index in range(len(part))] for part in parts]
    seen = list(itertools.chain(*places))
    assert len(set(seen)) == len(seen)
    for part in places:
        for count in range(1, len(part)):
            first = sum(source == 0 for source, _ in part[:count])
            assert abs(first - count / 4) < 1


def consume(orders, counts):
    return [(orders[n].source(i), orders[n][i], n) for n, c in enumerate(counts) for i in range(c)]


@pytest.mark.parametrize("weights", [(1, 3), (2, 1)])
def test_other_numbers_of_processes_go_on_with_what_is_left_and_nothing_twice(weights):
    """Two, then three, then one: 4 epochs of each source, no document lost but the cut end."""
    sizes = (7, 9)
    rng = np.random.default_rng(0)
    seen, dealt = [], []
    for processes in (2, 3, 1):
        orders = [
            order(sizes, weights, epochs=4, shard=(n, processes), dealt=dealt)
            for n in range(processes)
        ]
        lengths = [len(one) for one in orders]
        counts = [int(rng.integers(0, max(2, n // 2))) for n in lengths]
        if processes == 1:
            counts = lengths
        seen += [one[1] for one in consume(orders, counts)]
        dealt.append([(count, 0) for count in counts])
    for source, size in enumerate(sizes):
        times = np.bincount([number for one, number in seen if one == source], minlength=size)
        assert times.max() <= 4
    finished = [sum(one == source for one, _ in seen) == 4 * sizes[source] for source in (0, 1)]
    assert any(finished), "the source that ends first was read to its end"


def test_a_document_that_was_begun_goes_on_where_it_was_left():
    before = [order(shard=(n, 2)) for n in (0, 1)]
    deal = [(3, 11), (9, 0)]
    begun = before[0][3]
    after = [order(shard=(n, 3), dealt=[deal]) for n in range(3)]
    taken = [(after[n][i], after[n].taken(i)) for n in range(3) for i in range(6)]
    assert [one for one in taken if one[1]] == [(begun, 11)]
    again = order(dealt=[deal, [(0, 0), (0, 0), (0, 0)]])
    assert {again.taken(index) for index in range(40)} == {0, 11}

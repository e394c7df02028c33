import hashlib
import random

from maxtext.decoding.pages import Pages, page_keys
from maxtext.decoding.requests import Request, Sampling
from maxtext.decoding.scheduler import Limits, Scheduler, Sequence


def limits(**changed) -> Limits:
    given = {
        "num_ranks": 1,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "num_pages": 16,
        "page_size": 4,
        "max_length": 32,
        "prefix_caching": True,
    }
    return Limits(**(given | changed))


def sequence(number: int, tokens: list[int]) -> Sequence:
    return Sequence(number, Request(tuple(tokens), Sampling()), list(tokens))


def take_step(scheduler: Scheduler) -> list[list[tuple[int, int, int]]]:
    """One step, in which each sequence that is whole gets the token 7."""
    plan = scheduler.plan()
    sampling = [row.sequence for rows in plan for row in rows if row.samples]
    scheduler.advance(plan)
    for one in sampling:
        one.tokens.append(7)
    return [[(row.sequence.id, row.start, row.end) for row in rows] for rows in plan]


def test_keys_tell_pages_by_all_that_comes_before() -> None:
    first = page_keys([1, 2, 3, 4, 5], 2)
    assert len(first) == 2
    assert page_keys([1, 2, 3, 4, 9, 9], 2)[:2] == first
    other = page_keys([0, 2, 3, 4], 2)
    assert len({*first, *other}) == 4
    assert page_keys([1, 2, 3, 4, 5, 6], 2, first) == page_keys([1, 2, 3, 4, 5, 6], 2)


def test_pages_are_shared_and_the_longest_unused_go_first() -> None:
    pages = Pages(4, shared=True)
    keys = page_keys([1, 1, 2, 2, 3, 3], 2)
    mine = pages.take(3)
    for page, key in zip(mine, keys, strict=True):
        pages.name(page, key)
    assert pages.match(keys) == mine
    pages.share(mine[:1])
    pages.release(mine)
    assert (pages.num_free, pages.num_unused(mine)) == (3, 2)
    # The page that nobody ever used, then the last of the sequence that ended.
    assert pages.take(2) == [3, mine[2]]
    assert pages.match(keys) == mine[:2]
    pages.release(mine[:1])
    assert pages.num_free == 2


def test_each_page_is_hashed_once_and_looked_up_where_there_is_a_place_for_it(monkeypatch) -> None:
    hashed, matched = [], []
    real_hash, real_match = hashlib.blake2b, Pages.match

    def blake2b(*given, **named):
        hashed.append(given)
        return real_hash(*given, **named)

    def match(pages, keys):
        matched.append(keys)
        return real_match(pages, keys)

    monkeypatch.setattr(hashlib, "blake2b", blake2b)
    monkeypatch.setattr(Pages, "match", match)
    scheduler = Scheduler(limits(max_num_seqs=1))
    scheduler.add(sequence(0, [1] * 20))
    scheduler.add(sequence(1, [2] * 20))
    for _ in range(6):
        take_step(scheduler)
    # 20 tokens of the prompt and 4 new ones; the other sequence waits.
    assert (len(hashed), len(matched)) == (6, 1)


def test_prompts_are_cut_and_single_tokens_go_first() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(sequence(0, [1] * 3))
    scheduler.add(sequence(1, [2] * 20))
    scheduler.add(sequence(2, [3] * 5))
    assert take_step(scheduler) == [[(0, 0, 3), (1, 0, 13)]]
    assert take_step(scheduler) == [[(0, 3, 4), (1, 13, 20), (2, 0, 5)]]
    assert take_step(scheduler) == [[(0, 4, 5), (1, 20, 21), (2, 5, 6)]]


def test_known_beginnings_are_not_computed_again_but_for_one_token() -> None:
    scheduler = Scheduler(limits())
    first = sequence(0, [1, 2, 3, 4, 5, 6, 7, 8])
    scheduler.add(first)
    take_step(scheduler)
    scheduler.add(sequence(1, [1, 2, 3, 4, 5, 6, 7, 8]))
    scheduler.add(sequence(2, [1, 2, 3, 4, 9]))
    assert take_step(scheduler) == [[(0, 8, 9), (2, 4, 5), (1, 4, 8)]]
    assert scheduler.num_cached_tokens == 8
    scheduler.remove(first)
    assert scheduler.num_free_pages == 16 - 3


def test_the_youngest_loses_its_pages_and_is_the_next_to_come_back() -> None:
    scheduler = Scheduler(limits(num_pages=4, prefix_caching=False))
    old, young = sequence(0, [1] * 7), sequence(1, [2] * 7)
    scheduler.add(old)
    scheduler.add(young)
    scheduler.add(sequence(2, [3]))
    take_step(scheduler)
    assert take_step(scheduler) == [[(0, 7, 8), (1, 7, 8)]]
    assert take_step(scheduler) == [[(0, 8, 9)]]
    assert (scheduler.num_preempted, young.cached, young.pages) == (1, 0, [])
    scheduler.remove(old)
    assert take_step(scheduler) == [[(2, 0, 1), (1, 0, 9)]]


def test_ranks_share_the_work() -> None:
    scheduler = Scheduler(limits(num_ranks=2, max_num_seqs=1))
    for number in range(3):
        scheduler.add(sequence(number, [number] * 4))
    assert take_step(scheduler) == [[(0, 0, 4)], [(1, 0, 4)]]
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_no_page_is_lost_or_held_twice() -> None:
    draw = random.Random(0)
    scheduler = Scheduler(limits(num_ranks=2, num_pages=9, max_num_batched_tokens=7))
    live: dict[int, Sequence] = {}
    for number in range(120):
        one = sequence(number, [draw.randrange(2) for _ in range(draw.randrange(1, 20))])
        scheduler.add(one)
        live[number] = one
        for _ in range(draw.randrange(4)):
            take_step(scheduler)
        for other in list(live.values()):
            if len(other.tokens) > len(other.request.tokens) + 9 or draw.random() < 0.1:
                scheduler.remove(live.pop(other.id))
    for other in live.values():
        scheduler.remove(other)
    assert scheduler.num_free_pages == 18
    assert scheduler.num_preempted > 0
    assert scheduler.num_cached_tokens > 0


def test_a_sequence_goes_to_the_rank_that_it_loads_least() -> None:
    scheduler = Scheduler(limits(num_ranks=2, max_num_batched_tokens=64))
    for number, length in enumerate((20, 3, 4, 5)):
        scheduler.add(sequence(number, [number] * length))
    # One long sequence weighs as much as all the others.
    assert take_step(scheduler) == [[(0, 0, 20)], [(1, 0, 3), (2, 0, 4), (3, 0, 5)]]
    # Known tokens weigh nothing: four of them are too few, twelve are enough.
    scheduler.add(sequence(4, [0] * 4 + [9] * 3))
    assert take_step(scheduler)[1][-1] == (4, 0, 7)
    scheduler.add(sequence(5, [0] * 12 + [9]))
    assert take_step(scheduler)[0][-1] == (5, 12, 13)
    assert scheduler.num_cached_tokens == 12

import numpy as np
import pytest

from maxtext.data.batch import UNCOUNTED
from maxtext.data.packing import Cursor, Rows, TokenDocument, fill

ROWS, LENGTH = 3, 16


def random_documents(seed: int, count: int = 40) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.choice([0, 1, 2, 3, LENGTH, LENGTH + 1, LENGTH + 2, 5 * LENGTH], count)
    # Every token is another number, so that a misplaced one is seen.
    ends = np.cumsum(lengths)
    return np.split(np.arange(1000, 1000 + ends[-1], dtype=np.int32), ends[:-1])


KINDS = ["concat_then_split", "first_fit"]


def pack_all(documents, *, max_segments=-1, start=(0, 0), kind="concat_then_split", rows=ROWS):
    document, offset = start
    stream = (TokenDocument(one) for one in documents[document:])
    cursor = Cursor(stream, document=document, offset=offset)
    batches, states = [], []
    while True:
        batch = fill(cursor, Rows(rows, LENGTH, max_segments=max_segments), kind=kind)
        if batch is None:
            return batches, states
        batches.append(batch)
        states.append((cursor.document, cursor.offset))


def pairs_of(batches) -> list[tuple[int, int]]:
    return [
        (int(one), int(other))
        for batch in batches
        for one, other, segment in zip(
            batch.inputs.flat, batch.targets.flat, batch.segments.flat, strict=True
        )
        if segment
    ]


@pytest.mark.parametrize("max_segments", [-1, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_every_pair_of_every_document_comes_exactly_once_and_in_order(seed, max_segments):
    documents = random_documents(seed)
    want = [
        pair for one in documents for pair in zip(one[:-1].tolist(), one[1:].tolist(), strict=True)
    ]
    batches, _ = pack_all(documents, max_segments=max_segments)
    assert pairs_of(batches) == want
    batches, _ = pack_all(documents, max_segments=max_segments, kind="first_fit")
    assert sorted(pairs_of(batches)) == want


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_segments", [-1, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_segments_count_up_and_positions_restart_in_each(seed, max_segments, kind):
    batches, _ = pack_all(random_documents(seed), max_segments=max_segments, kind=kind)
    for batch in batches:
        for inputs, positions, segments in zip(
            batch.inputs, batch.positions, batch.segments, strict=True
        ):
            used = int((segments != 0).sum())
            assert (segments[:used] != 0).all(), "padding comes last"
            assert (positions[used:] == 0).all()
            assert (inputs[used:] == 0).all()
            numbers = list(dict.fromkeys(segments[:used].tolist()))
            assert numbers == list(range(1, len(numbers) + 1))
            assert max_segments == -1 or len(numbers) <= max_segments
            for number in numbers:
                where = segments == number
                assert positions[where].tolist() == list(range(int(where.sum())))
                assert (np.diff(inputs[where]) == 1).all(), "a segment is a piece of one document"


def test_only_the_end_of_the_stream_leaves_a_row_unfilled():
    batches, _ = pack_all(random_documents(0))
    segments = np.concatenate([batch.segments for batch in batches])
    used = (segments != 0).sum(axis=1)
    last = int(np.flatnonzero(used)[-1])
    assert (used[:last] == LENGTH).all()
    assert (used[last + 1 :] == 0).all()


def test_every_batch_has_the_same_shape_and_the_last_is_padded():
    batches, _ = pack_all([np.arange(LENGTH * ROWS + 3, dtype=np.int32)])
    assert [batch.inputs.shape for batch in batches] == [(ROWS, LENGTH)] * 2
    assert all(batch.inputs.dtype == np.int32 for batch in batches)
    assert (batches[1].segments != 0).sum() == 2


def test_a_stream_that_fills_the_last_batch_exactly_makes_no_empty_one():
    batches, _ = pack_all([np.arange(LENGTH * ROWS + 1, dtype=np.int32)])
    assert len(batches) == 1
    assert (batches[0].segments == 1).all()


def test_a_long_document_goes_on_in_the_next_row_with_positions_from_zero():
    batches, _ = pack_all([np.arange(100, 100 + LENGTH + 4, dtype=np.int32)])
    rows = batches[0]
    assert rows.targets[0, -1] == rows.inputs[1, 0] == 100 + LENGTH
    assert rows.positions[1, :3].tolist() == [0, 1, 2]
    assert rows.segments[1, :4].tolist() == [1, 1, 1, 0]


def test_first_fit_keeps_what_fits_whole_and_puts_it_into_the_first_row_with_room():
    lengths = [10, 14, 6, 2, 9, 7, 16]
    documents = [np.arange(100 * n, 100 * n + pairs + 1) for n, pairs in enumerate(lengths, 1)]
    batches, states = pack_all(documents, kind="first_fit")
    got = [[row[row > 0].tolist() for row in batch.inputs] for batch in batches]
    whole = [document[:-1].tolist() for document in documents]
    assert got == [
        [whole[0] + whole[2], whole[1] + whole[3], whole[4] + whole[5]],
        [whole[6], [], []],
    ]
    assert states == [(6, 0), (7, 0)]


def test_first_fit_cuts_only_what_no_row_can_hold():
    documents = [np.arange(1000, 1000 + 2 * LENGTH + 6), np.arange(5000, 5000 + LENGTH)]
    (batch,), _ = pack_all(documents, kind="first_fit", rows=4)
    assert [(row != 0).sum() for row in batch.segments] == [LENGTH, LENGTH, 5, LENGTH - 1]


def test_what_is_only_read_is_input_but_no_target():
    document = np.array([10, ~11, ~12, 13, 14], np.int32)
    (batch,), _ = pack_all([document])
    assert batch.inputs[0, :5].tolist() == [10, 11, 12, 13, 0]
    assert batch.targets[0, :5].tolist() == [UNCOUNTED, UNCOUNTED, 13, 14, 0]
    assert batch.counts.sum() == 2


def test_pairs_are_counted_by_source_and_those_had_before_are_left_out():
    documents = [
        TokenDocument(np.arange(9), source=1),
        TokenDocument(np.arange(20, 40), source=0, taken=15),
        TokenDocument(np.arange(3), source=1),
    ]
    cursor = Cursor(iter(documents), document=0, offset=0)
    batch = fill(cursor, Rows(ROWS, LENGTH, max_segments=-1), kind="concat_then_split")
    assert cursor.pairs == {1: 8 + 2, 0: 4}
    assert batch.inputs[0, 8:12].tolist() == [35, 36, 37, 38]


def test_documents_of_fewer_than_two_tokens_make_no_pairs():
    assert pack_all([np.array([], np.int32), np.array([5], np.int32)]) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_segments", [-1, 1, 2])
def test_packing_goes_on_from_any_state_to_the_bit(max_segments, kind):
    documents = random_documents(3)
    keys = {"max_segments": max_segments, "kind": kind}
    batches, states = pack_all(documents, **keys)
    assert any(offset for _, offset in states), "some batch ends inside a document"
    for number, state in enumerate(states):
        rest, _ = pack_all(documents, start=state, **keys)
        assert len(rest) == len(batches) - number - 1
        for got, want in zip(rest, batches[number + 1 :], strict=True):
            np.testing.assert_array_equal(got.inputs, want.inputs)
            np.testing.assert_array_equal(got.segments, want.segments)


def test_a_position_outside_of_its_document_is_refused():
    stream = iter([TokenDocument(np.arange(4, dtype=np.int32))])
    cursor = Cursor(stream, document=7, offset=3)
    with pytest.raises(ValueError, match="pair 3 of document 7, which has 4 tokens"):
        cursor.left()

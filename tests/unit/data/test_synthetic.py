import itertools
import json

import numpy as np
import pytest

from maxtext.data.batch import Shard, batch_digest
from maxtext.data.iterators import make_eval_iterator, make_train_iterator

ONE = Shard(0, 1)


@pytest.fixture
def make(make_config):
    def make(*, shard=ONE, rows=3, vocab_size=256, evaluate=False, **keys):
        config = make_config(dataset_type="synthetic", max_target_length=32, **keys)
        maker = make_eval_iterator if evaluate else make_train_iterator
        return maker(config, rows=rows, shard=shard, vocab_size=vocab_size)

    return make


def digests(iterator, count=None):
    return [batch_digest(batch) for batch in itertools.islice(iterator, count)]


def test_synthetic_rows_do_not_depend_on_the_number_of_processes(make):
    whole = list(itertools.islice(make(rows=6), 3))
    halves = [make(rows=3, shard=Shard(index, 2)) for index in (0, 1)]
    for batch in whole:
        parts = [next(half) for half in halves]
        np.testing.assert_array_equal(np.concatenate([one.inputs for one in parts]), batch.inputs)
    assert len(set(digests(iter(whole)))) == 3


def test_synthetic_batches_are_full_within_the_vocabulary_and_each_target_follows(make):
    batch = next(make(vocab_size=11))
    assert (batch.segments == 1).all()
    assert (batch.positions == np.arange(32)).all()
    np.testing.assert_array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert set(np.unique(batch.targets)) == set(range(11))


def test_synthetic_streams_go_on_from_a_state_and_differ_by_seed_and_purpose(make):
    iterator = make()
    digests(iterator, 2)
    state = json.loads(json.dumps(iterator.get_state()))
    again = make()
    again.set_state(state)
    assert digests(again, 3) == digests(iterator, 3)
    iterator.reset()
    streams = [iterator, make(data_shuffle_seed=1), make(evaluate=True)]
    assert len({digests(one, 1)[0] for one in streams}) == 3
    with pytest.raises(ValueError, match="data_shuffle_seed: saved 0, now 1"):
        streams[1].set_state(state)

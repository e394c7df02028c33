import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from maxtext.data.batch import Shard, batch_digest, empty_batch, own_state
from maxtext.data.iterators import make_eval_iterator, make_train_iterator

ONE = Shard(0, 1)
TEXTS = [chr(ord("A") + number) * (1 + 7 * number) for number in range(26)]


@pytest.fixture
def corpus(write_jsonl):
    return str(write_jsonl(TEXTS))


@pytest.fixture
def mixed(corpus, write_jsonl):
    """The capital letters, and a third as many documents of small ones."""
    small = [text[: 1 + len(text) // 3].lower() for text in TEXTS[:7]]
    return f"{corpus},3;{write_jsonl(small, 'small.jsonl')},1"


@pytest.fixture
def make(make_config, corpus, mixed):
    def make(*, shard=ONE, rows=3, vocab_size=256, evaluate=False, **keys):
        if keys.get("grain_train_files") == "MIXED":
            keys["grain_train_files"] = mixed
        files = {"grain_train_files": corpus, "grain_eval_files": corpus}
        config = make_config(**({"dataset_type": "grain", "max_target_length": 32} | files | keys))
        maker = make_eval_iterator if evaluate else make_train_iterator
        return maker(config, rows=rows, shard=shard, vocab_size=vocab_size)

    return make


def digests(iterator, count=None):
    return [batch_digest(batch) for batch in itertools.islice(iterator, count)]


def targets_of(batches):
    return np.concatenate([batch.targets[batch.segments != 0] for batch in batches])


def letters_of(batches):
    """How often each document is seen: its text's first letter follows its BOS."""
    first = [batch.targets[(batch.segments != 0) & (batch.inputs == 254)] for batch in batches]
    return np.concatenate(first)


ALL_LETTERS = sorted(ord(text[0]) for text in TEXTS)


def test_every_token_but_bos_is_a_target_exactly_once_an_epoch(make):
    batches = list(make(num_epoch=1))
    want = sorted(b"".join(text.encode() + b"\xff" for text in TEXTS))
    assert sorted(targets_of(batches).tolist()) == want


def test_padding_is_never_told_by_a_token(make):
    """EOS and pad are trained on like all others where they are text's own tokens."""
    batches = list(make(num_epoch=1))
    eos = sum(int(((batch.targets == 255) & (batch.segments != 0)).sum()) for batch in batches)
    assert eos == len(TEXTS)


@pytest.mark.parametrize("keys", [{}, {"packing": False}, {"max_segments_per_seq": 2}])
def test_shuffled_epochs_hold_each_document_once_in_another_order(make, keys):
    letters = letters_of(make(num_epoch=3, **keys)).tolist()
    epochs = [letters[start : start + 26] for start in range(0, 78, 26)]
    assert [sorted(epoch) for epoch in epochs] == [ALL_LETTERS] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert ALL_LETTERS not in epochs


def test_the_order_depends_on_the_seed_alone(make):
    orders = [
        tuple(letters_of(make(num_epoch=1, data_shuffle_seed=seed, **keys)).tolist())
        for seed, keys in [
            (0, {}),
            (0, {"max_target_length": 48}),
            (1, {}),
            (2**31 - 1, {}),
        ]
    ]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3
    assert bytes(orders[0]) == b"OPLYRVXKBHDATMEFQGIUNWJZCS", "on every machine"


def test_a_seed_and_its_neighbour_share_no_epoch(make):
    letters = [letters_of(make(num_epoch=2, data_shuffle_seed=seed)).tolist() for seed in (0, 1)]
    assert letters[0][26:] != letters[1][:26]


def test_without_shuffling_documents_keep_the_order_of_the_file(make):
    assert letters_of(make(num_epoch=2, enable_data_shuffling=False)).tolist() == ALL_LETTERS * 2


def test_without_packing_a_row_holds_one_document(make):
    batches = list(make(num_epoch=1, packing=False))
    assert max(int(batch.segments.max()) for batch in batches) == 1
    assert len(targets_of(batches)) == sum(len(text) + 1 for text in TEXTS)


def test_endless_training_goes_over_the_end_of_an_epoch_without_padding(make):
    batches = list(itertools.islice(make(num_epoch=-1), 100))
    assert all((batch.segments != 0).all() for batch in batches)


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_processes_share_each_epoch_without_overlap(make, processes):
    shards = [Shard(index, processes) for index in range(processes)]
    parts = [letters_of(make(num_epoch=1, shard=shard)) for shard in shards]
    assert sorted(np.concatenate(parts).tolist()) == ALL_LETTERS
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_process_without_documents_ends_at_once_and_feeds_empty_batches(make):
    assert list(make(num_epoch=1, shard=Shard(26, 27))) == []
    batch = empty_batch(3, 32)
    assert batch.inputs.shape == (3, 32)
    assert not batch.segments.any()
    assert len(digests(make(num_epoch=-1, shard=Shard(26, 27)), 3)) == 3


def test_evaluation_reads_everything_once_and_again_after_a_reset(make):
    iterator = make(evaluate=True, num_epoch=7)
    first = digests(iterator)
    assert digests(iterator) == []
    iterator.reset()
    assert digests(iterator) == first
    iterator.reset()
    assert letters_of(iterator).tolist() == ALL_LETTERS


MIXED = {"grain_train_files": "MIXED"}
RESUMED = [
    {},
    {"grain_packing_type": "first_fit"},
    MIXED,
    MIXED | {"grain_packing_type": "first_fit", "enable_data_shuffling": False},
    {"enable_data_shuffling": False},
    {"packing": False},
    {"max_segments_per_seq": 2},
    {"add_bos": False, "add_eos": False},
    {"num_epoch": 2},
]


@pytest.mark.parametrize("keys", RESUMED, ids=str)
def test_a_stream_goes_on_to_the_bit_from_every_state_and_after_two_resumes(make, keys):
    whole = digests(make(**keys), 60)
    straight = make(**keys)
    states = [straight.get_state()]
    for _ in whole:
        next(straight)
        states.append(json.loads(json.dumps(straight.get_state())))
    assert any(state["offset"] for state in states)
    assert states[-1]["document"] > 26, "past the first epoch"
    for number in (0, 1, 7, 30, len(whole) - 3):
        iterator = make(**keys)
        iterator.set_state(states[number])
        assert digests(iterator, 2) == whole[number : number + 2]
        again = make(**keys)
        again.set_state(json.loads(json.dumps(iterator.get_state())))
        assert digests(again, len(whole) - number - 2) == whole[number + 2 :]


def test_a_mixture_has_its_weights_and_counts_the_tokens_of_each_source(make):
    iterator = make(**MIXED)
    batches = [next(iterator) for _ in range(90)]
    letters = letters_of(batches)
    small = letters >= ord("a")
    assert abs(small.sum() - letters.size / 4) <= 1
    sums = {"documents.jsonl": 0, "small.jsonl": 0}
    for batch in batches:
        where = batch.segments != 0
        # A pair is of the source whose letters are in its row's segment.
        for row in range(3):
            for segment in range(1, int(batch.segments[row].max()) + 1):
                of = where[row] & (batch.segments[row] == segment)
                ids = np.concatenate([batch.inputs[row, of], batch.targets[row, of]])
                is_small = (ids[(ids != 254) & (ids != 255)] >= ord("a")).any()
                sums["small.jsonl" if is_small else "documents.jsonl"] += int(of.sum())
    counted = iterator.get_state()["tokens"]
    assert sum(counted.values()) == sum(sums.values()) == 90 * 3 * 32
    # A piece that is nothing but EOS has no letter to tell.
    assert abs(counted["small.jsonl"] - sums["small.jsonl"]) < 40
    assert make().get_state()["tokens"] == {}


def test_a_mixture_of_other_weights_is_refused_by_name(make, mixed):
    other = make(grain_train_files=mixed.replace(",3;", ",2;"))
    with pytest.raises(ValueError, match=r"weight 3', now .*weight 2'"):
        other.set_state(make(**MIXED).get_state())


@pytest.mark.parametrize("keys", [{}, MIXED | {"grain_packing_type": "first_fit"}], ids=str)
def test_other_numbers_of_processes_go_on_with_every_pair_that_is_left(make, keys):
    """An epoch by two processes, then three, then one; each is stopped inside a document."""
    whole = sorted(
        targets_of(make(num_epoch=1, **{**keys, "enable_data_shuffling": True})).tolist()
    )
    batches, states, tokens = [], None, 0
    for processes, count in ((2, 2), (3, 2), (1, None)):
        iterators = [
            make(num_epoch=1, rows=1, shard=Shard(n, processes), **keys) for n in range(processes)
        ]
        for number, iterator in enumerate(iterators):
            if states is not None:
                iterator.set_state(own_state(states, Shard(number, processes)))
            batches += itertools.islice(iterator, count and count + number)
        states = [json.loads(json.dumps(one.get_state())) for one in iterators]
        tokens = sum(sum(state["tokens"].values()) for state in states)
    got = targets_of(batches)
    if keys:
        assert tokens == got.size
        assert abs(got.size - len(whole)) < 0.2 * len(whole), "the mixture ends with one source"
    else:
        assert sorted(got.tolist()) == whole


def test_a_state_of_some_batches_ago_brings_the_iterator_back(make):
    iterator = make()
    digests(iterator, 5)
    state = iterator.get_state()
    following = digests(iterator, 4)
    iterator.set_state(state)
    assert digests(iterator, 4) == following


def test_the_end_is_a_state_too(make):
    iterator = make(num_epoch=1)
    digests(iterator)
    again = make(num_epoch=1)
    again.set_state(iterator.get_state())
    assert digests(again) == []


def test_rows_and_epochs_may_change_when_a_run_goes_on(make):
    iterator = make(num_epoch=1)
    seen = list(itertools.islice(iterator, 4))
    other = make(num_epoch=2, rows=5)
    other.set_state(iterator.get_state())
    assert len(targets_of([*seen, *other])) == 2 * sum(len(text) + 1 for text in TEXTS)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"add_bos": False}, "add_bos: saved True, now False"),
        ({"add_eos": False}, "add_eos: saved True, now False"),
        ({"packing": False}, "packing: saved True, now False"),
        ({"max_segments_per_seq": 3}, "max_segments_per_seq: saved -1, now 3"),
        ({"max_target_length": 8}, "max_target_length: saved 32, now 8"),
        ({"data_shuffle_seed": 1}, "data_shuffle_seed: saved 0, now 1"),
        ({"enable_data_shuffling": False}, "enable_data_shuffling: saved True, now False"),
        ({"grain_packing_type": "first_fit"}, "grain_packing_type: saved 'concat_then_split'"),
        ({"dataset_type": "synthetic"}, "format 'maxtext packed documents, 2'"),
        ({"evaluate": True}, "grain_eval_files: saved None"),
    ],
    ids=str,
)
def test_a_state_of_other_settings_is_refused_by_name(make, keys, name):
    iterator = make(**keys)
    with pytest.raises(ValueError, match=name):
        iterator.set_state(make().get_state())


def test_a_state_of_other_files_is_refused_by_name(make, write_jsonl):
    other = str(write_jsonl(TEXTS[::-1], "other.jsonl"))
    with pytest.raises(ValueError, match="grain_train_files: saved '26 documents in 1 files of"):
        make(grain_train_files=other).set_state(make().get_state())


def test_a_damaged_record_stops_the_iterator_where_it_lies_each_time(make, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a"}\n{"text": 1}\n{"text": "b"}\n')
    iterator = make(grain_train_files=str(path))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"bad\.jsonl:2: column 'text' is int"):
            next(iterator)


def test_data_without_a_single_pair_is_an_error_and_no_endless_loop(make, write_jsonl):
    files = str(write_jsonl(["", "a"], "short.jsonl"))
    iterator = make(grain_train_files=files, add_bos=False, add_eos=False)
    with pytest.raises(ValueError, match="none of the 2 documents has a token to predict"):
        next(iterator)


def test_one_document_is_a_corpus(make, write_jsonl):
    letters = letters_of(
        make(grain_train_files=str(write_jsonl(["abc"], "one.jsonl")), num_epoch=3)
    )
    assert letters.tolist() == [ord("a")] * 3


def test_committed_text_loses_no_character(make):
    path = Path(__file__).parents[3] / "data" / "shakespeare-valid.jsonl"
    iterator = make(evaluate=True, grain_eval_files=str(path), add_bos=False)
    lines = path.read_bytes().splitlines()
    want = b"".join(json.loads(line)["text"].encode()[1:] + b"\xff" for line in lines)
    assert bytes(targets_of(iterator).tolist()) == want

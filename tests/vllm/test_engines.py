"""vLLM's engine on our decoder says what our own engine says."""

import dataclasses
from collections.abc import Generator, Sequence

import jax
import numpy as np
import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler

from maxtext.config.load import load
from maxtext.decoding.engine import Engine
from maxtext.decoding.load import Served, make_engine
from maxtext.decoding.requests import Event, Request, Sampling
from maxtext.integrations.vllm.engine import VllmEngine
from maxtext.integrations.vllm.load import load_vllm_engine
from maxtext.integrations.vllm.tokenizer import with_tokenizer
from maxtext.parallel.params import shardings
from tiny import GEMMA2, GEMMA3, LENGTH, QWEN3
from tiny_engine import (
    forward_logits,
    prompts,
    run,
    tiny_engine,
    tiny_served,
    tokens_of,
    weights,
)
from vllm_checkpoints import write_checkpoint

# Log probabilities of bfloat16 that are closer than this are a tie.
TIE = 0.06
# Sixteen requests that are batched together, some longer than a step takes.
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 20, 21, 22, 22)
DP, _REPLICATED = ("enable_dp_attention=true",), "attn_dp_weights=replicated"
MESH = ("ici_data_parallelism", "ici_tensor_parallelism", "enable_dp_attention", "attn_dp_weights")
# Room for one whole sequence and a quarter in each rank.
FEW_PAGES, MORE_PAGES = "num_pages=10", "num_pages=40"
LIMITS = ("page_size=4", "max_num_seqs=16", "max_num_batched_tokens=16")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model on a mesh."""

    name: str
    argv: tuple[str, ...] = ()
    dtype: str = "float32"


CELLS = [
    Cell("llama", (FEW_PAGES,)),
    Cell("qwen3-bfloat16", QWEN3, "bfloat16"),
    Cell("gemma2", GEMMA2),
    Cell("gemma3-bfloat16", GEMMA3, "bfloat16"),
    Cell("tensor 2", ("ici_tensor_parallelism=2",)),
    # More devices than key and value heads, without attention data parallelism.
    Cell("tensor 4", (*QWEN3, "ici_tensor_parallelism=4")),
    Cell("data 2, tensor 2", ("ici_data_parallelism=2", "ici_tensor_parallelism=2")),
    Cell("tensor 4, attn_dp 2", ("ici_tensor_parallelism=4", *DP, _REPLICATED)),
    Cell("tensor 4, attn_dp 2, sharded", (*GEMMA3, "ici_tensor_parallelism=4", *DP), "bfloat16"),
    Cell("tensor 8, attn_dp 4", (*QWEN3, *DP, "ici_tensor_parallelism=8", _REPLICATED, MORE_PAGES)),
    Cell("tensor 8, attn_dp 4, sharded", ("ici_tensor_parallelism=8", *DP)),
]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Both engines with the same weights."""

    cell: Cell
    served: Served
    ours: Engine
    theirs: VllmEngine


@pytest.fixture(scope="module", params=CELLS, ids=lambda cell: cell.name)
def pair(request, tmp_path_factory) -> Generator[Pair]:
    cell: Cell = request.param
    folder = tmp_path_factory.mktemp("run")
    model = [text for text in cell.argv if text.split("=")[0] not in MESH]
    write_checkpoint(folder / "checkpoint", *model)
    path = f"load_parameters_path={folder / 'checkpoint'}"
    theirs = load_theirs(path, *cell.argv, f"decode_dtype={cell.dtype}")
    ours, served = tiny_engine(*model, *LIMITS, f"decode_dtype={cell.dtype}")
    yield Pair(cell, served, ours, theirs)
    theirs.close()


def load_theirs(*argv: str) -> VllmEngine:
    argv = (*LIMITS, *argv, "matmul_precision=highest", "jax_cache_dir=")
    config, tokenizer = with_tokenizer(load(argv, {}, model_from_checkpoint=True).config)
    return load_vllm_engine(config, tokenizer, argv)


def requests(lengths: Sequence[int], *, seed: int = 0) -> list[Request]:
    """Greedy ones, as many new tokens as there is room for."""
    return [
        Request(tokens, Sampling(max_new_tokens=min(10, LENGTH - len(tokens)), logprobs=2))
        for tokens in prompts(*lengths, seed=seed)
    ]


def assert_equal(pair: Pair, wanted: Sequence[Sequence[Event]], found: Sequence[Sequence[Event]]):
    """The same tokens, in bfloat16 up to the first near-tie, and the same log probabilities."""
    tolerance = TIE if pair.cell.dtype == "bfloat16" else 1e-3
    for want, got in zip(wanted, found, strict=True):
        assert got[-1].finish_reason == want[-1].finish_reason
        logprobs = [[one for event in events for one in event.logprobs] for events in (want, got)]
        assert len(tokens_of(got)) == len(logprobs[1]) == len(tokens_of(want))
        for token, other, one, two in zip(tokens_of(want), tokens_of(got), *logprobs, strict=True):
            if token != other:
                best, second = one.top.values()
                assert pair.cell.dtype == "bfloat16"
                assert best - second < TIE
                break
            assert two.chosen == pytest.approx(one.chosen, abs=tolerance)
            assert list(two.top.values()) == pytest.approx(list(one.top.values()), abs=tolerance)


def test_one_request_has_the_tokens_of_our_engine(pair) -> None:
    asked = requests([7])
    assert_equal(pair, run(pair.ours, asked), run(pair.theirs, asked))


def test_sixteen_requests_at_once_do_not_see_each_other(pair) -> None:
    asked = requests(LENGTHS, seed=1)
    assert_equal(pair, run(pair.ours, asked), run(pair.theirs, asked))


def test_what_prompts_begin_with_in_common_is_computed_once(pair) -> None:
    asked = requests([22], seed=2)
    first = run(pair.theirs, asked)
    before = pair.theirs.num_cached_tokens
    again = run(pair.theirs, asked)
    assert pair.theirs.num_cached_tokens == before + 20
    assert_equal(pair, first, again)


def test_log_probabilities_of_prompts_are_those_of_the_forward_pass(pair) -> None:
    texts = prompts(3, 20, seed=4)
    params = SamplingParams(prompt_logprobs=1, max_tokens=1, temperature=0.0, detokenize=False)
    engine = pair.theirs.engine
    for number, tokens in enumerate(texts):
        engine.add_request(f"prompt {number}", {"prompt_token_ids": list(tokens)}, params)
    found = {}
    while engine.has_unfinished_requests():
        found |= {one.request_id: one.prompt_logprobs for one in engine.step() if one.finished}
    want = np.asarray(jax.nn.log_softmax(forward_logits(pair.served, texts)))
    tolerance = 0.1 if pair.cell.dtype == "bfloat16" else 1e-3
    for number, tokens in enumerate(texts):
        first, *rest = found[f"prompt {number}"]
        assert first is None
        for place, (token, of_token) in enumerate(zip(tokens[1:], rest, strict=True)):
            assert of_token[token].logprob == pytest.approx(
                want[number, place, token], abs=tolerance
            )


def test_requests_that_lose_their_pages_say_the_same(pair, monkeypatch) -> None:
    lost = []
    preempt = Scheduler._preempt_request

    def counted(scheduler, request, *rest, **named):
        lost.append(request)
        return preempt(scheduler, request, *rest, **named)

    monkeypatch.setattr(Scheduler, "_preempt_request", counted)
    asked = requests(LENGTHS, seed=5)
    assert_equal(pair, run(pair.ours, asked), run(pair.theirs, asked))
    # With several ranks their schedulers are processes of their own.
    assert lost or FEW_PAGES not in pair.cell.argv or DP[0] in pair.cell.argv


def test_log_probabilities_do_not_change_tokens(pair) -> None:
    # Without them the host does not wait for a step before it prepares the next.
    asked = requests(LENGTHS, seed=3)
    plain = [Request(one.tokens, dataclasses.replace(one.sampling, logprobs=None)) for one in asked]
    assert list(map(tokens_of, run(pair.theirs, plain))) == list(
        map(tokens_of, run(pair.theirs, asked))
    )


def test_newer_weights_of_a_run_are_taken_without_a_new_engine(tmp_path) -> None:
    write_checkpoint(tmp_path / "run")
    argv = [*DP, "ici_tensor_parallelism=8"]
    theirs = load_theirs(f"load_parameters_path={tmp_path / 'run'}", *argv)
    asked = requests([3, 21], seed=6)
    first = list(map(tokens_of, run(theirs, asked)))
    served = tiny_served(*LIMITS)
    newer = jax.tree.map(lambda leaf: np.flip(leaf, -1), weights(served))
    write_checkpoint(tmp_path / "run", step=7, params=newer)
    waiting = theirs.add(asked[0])
    with pytest.raises(ValueError, match="1 requests run"):
        theirs.load_newest_weights()
    theirs.cancel(waiting)
    theirs.load_newest_weights()
    compiled = theirs.stats.compile_seconds
    again = list(map(tokens_of, run(theirs, asked)))
    assert theirs.stats.compile_seconds == compiled
    placed = jax.device_put(newer, shardings(served.specs, served.layout))
    want = list(map(tokens_of, run(make_engine(served, placed), asked)))
    assert again == want != first
    theirs.close()

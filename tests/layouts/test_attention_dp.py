"""Attention data parallelism says what one device says, and moves no more than it has to."""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.stages import Lowered

from maxtext.config.load import load
from maxtext.decoding.cache import abstract_cache
from maxtext.decoding.engine import Engine
from maxtext.decoding.load import Served, abstract_params
from maxtext.decoding.requests import Event, Request
from maxtext.decoding.sampling import Mode
from maxtext.decoding.scheduler import Limits, Scheduler
from maxtext.decoding.step import Step, StepShape, lower_step
from maxtext.models.registry import architecture
from maxtext.parallel.layout import Layout
from maxtext.parallel.program import Collective, collectives, memory
from maxtext.parallel.serving import serving_layout
from tiny import GEMMA3, LENGTH, QWEN3, T0, VOCAB
from tiny_engine import assert_greedy, generate, prompts, request, run, tiny_engine, tokens_of

# 24 query heads of 8: groups of 12, 6 and 3, and a width that is not that of the model.
EIGHT = ("base_num_query_heads=24", "base_num_decoder_layers=1")
SIX = (
    "base_num_query_heads=18",
    "base_emb_dim=96",
    "base_mlp_dim=144",
    "vocab_size=258",
    "base_num_decoder_layers=1",
)
OWN = ("ici_fsdp_parallelism=1", "max_num_seqs=16", "max_num_batched_tokens=16")
# (devices, key and value heads, groups asked for, weights): -1 derives the groups.
CELLS = [
    (8, 2, -1, "sharded"),
    (8, 2, -1, "replicated"),
    (8, 4, -1, "sharded"),
    (8, 4, -1, "replicated"),
    (4, 1, -1, "sharded"),
    (4, 1, -1, "replicated"),
    (6, 3, -1, "sharded"),
    (6, 3, -1, "replicated"),
    (8, 8, -1, "auto"),
    (8, 8, 4, "sharded"),
    (8, 8, 2, "replicated"),
]
FAST = [(8, 2, -1, "sharded"), (8, 8, 4, "sharded"), (6, 3, -1, "replicated")]


def model_of(tensor: int, kv_heads: int) -> tuple[str, ...]:
    return (*(SIX if tensor == 6 else EIGHT), *OWN, f"base_num_kv_heads={kv_heads}")


@functools.cache
def groups_of(tensor: int, kv_heads: int, groups: int, weights: str) -> tuple[Engine, Served]:
    """An engine whose attention runs in groups of the devices."""
    mesh = {"ici_attn_dp_parallelism": groups, "attn_dp_weights": weights}
    argv = (*model_of(tensor, kv_heads), f"ici_tensor_parallelism={tensor}")
    return tiny_engine(*argv, devices=tensor, enable_dp_attention=True, **mesh)


@functools.cache
def one_device(tensor: int, kv_heads: int) -> Engine:
    """The same model on one device."""
    return tiny_engine(*model_of(tensor, kv_heads))[0]


def workloads() -> dict[str, list[Request]]:
    """Prompts alone, single tokens alone, and both at once; of 1, 5 and 16 requests."""
    lengths = [1 + 7 * place % (LENGTH - 1) for place in range(16)]
    return {
        "prefill": [request(one, max_new_tokens=1, logprobs=5) for one in prompts(31, 2, 17, 9, 5)],
        "one": [request(one, logprobs=5) for one in prompts(7, seed=1)],
        "decode": [request(one, logprobs=5) for one in prompts(*[1] * 16, seed=2)],
        "mixed": [request(one, logprobs=5) for one in prompts(*lengths, seed=3)],
    }


def logprobs_of(events: Sequence[Event]) -> np.ndarray:
    """Of each token and the likeliest five in its place."""
    found = [one for event in events for one in event.logprobs]
    return np.array([(one.chosen, *sorted(one.top.values())) for one in found])


def marked(cell: tuple[int, int, int, str]):
    return cell if cell in FAST else pytest.param(*cell, marks=pytest.mark.slow)


@pytest.mark.parametrize(("tensor", "kv_heads", "groups", "weights"), [*map(marked, CELLS)])
def test_logits_and_tokens_are_those_of_one_device(
    tensor: int, kv_heads: int, groups: int, weights: str
) -> None:
    engine, served = groups_of(tensor, kv_heads, groups, weights)
    assert served.layout.mesh.shape.get("attn_dp", 1) > 1 or groups == -1
    for name, requests in workloads().items():
        found = run(engine, requests)
        want = run(one_device(tensor, kv_heads), requests)
        assert list(map(tokens_of, found)) == list(map(tokens_of, want)), name
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(
                logprobs_of(one), logprobs_of(other), atol=1e-3, err_msg=name
            )
        # The forward pass knows no ids that are no tokens, which a vocabulary of 258 has.
        if tensor != 6:
            assert_greedy(served, requests, list(map(tokens_of, found)))
    assert engine.num_free_pages == engine.num_pages


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["sharded", "replicated"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "biases", "fused"])
def test_other_families_say_what_forward_passes_say(family: str, weights: str) -> None:
    own = {
        "qwen3": QWEN3,
        "gemma3": (*GEMMA3, "base_num_decoder_layers=7"),
        "biases": ("decoder_block=qwen2", "attention_bias=true"),
        # One product makes queries, keys and values: 8 key and value heads for Q+K+V.
        "fused": ("fused_qkv=true", "fused_mlp=true", "base_num_kv_heads=8"),
    }
    argv = ("ici_tensor_parallelism=8", *OWN, *own[family])
    mesh = {"ici_attn_dp_parallelism": 4, "attn_dp_weights": weights}
    engine, served = tiny_engine(*argv, devices=8, **mesh)
    requests = [request(tokens) for tokens in prompts(1, 7, LENGTH - 1, 22, 3)]
    assert_greedy(served, requests, generate(engine, requests))


def test_settings_seeds_and_ends_follow_a_request_to_its_rank() -> None:
    engine, _ = groups_of(*FAST[0])
    alone = one_device(*FAST[0][:2])
    [first, *others] = prompts(7, 3, 12, 5, 9, 1, 20, 4, 8, 2, 6, seed=4)
    requests = [
        request(first),
        request(first, max_new_tokens=3),
        request(first, repetition_penalty=1e6),
        *(
            request(one, temperature=1.5, seed=seed, top_k=(0, 5, 40)[seed % 3], top_p=0.95)
            for seed, one in enumerate(others)
        ),
    ]
    want = generate(alone, requests)
    assert generate(engine, requests) == want
    # Others have other neighbours then, and lie on other ranks; some end early.
    ends = [request(first, eos_ids=(want[0][4],)), *requests[1:]][::-1]
    found = run(engine, ends)[::-1]
    assert tokens_of(found[0]) == want[0][: want[0].index(want[0][4])]
    assert found[0][-1].finish_reason == "eos"
    assert [tokens_of(one) for one in found[1:]] == want[1:]


def test_pages_are_shared_on_a_rank_and_given_up_there() -> None:
    # Four ranks of nine pages of four tokens: a rank cannot hold its four sequences at once.
    argv = (*model_of(8, 2), "ici_tensor_parallelism=8", "num_pages=36")
    mesh = {"enable_dp_attention": True, "attn_dp_weights": "sharded"}
    engine, served = tiny_engine(*argv, devices=8, **mesh)
    start = prompts(12, seed=5)[0]
    requests = [request((*start, *one)[:22]) for one in prompts(*range(1, 17), seed=6)]
    assert_greedy(served, requests, generate(engine, requests))
    assert engine.num_preempted > 0
    assert engine.num_cached_tokens > 0
    assert engine.num_free_pages == engine.num_pages


@pytest.mark.slow
def test_no_rank_idles_while_requests_queue_and_none_says_another_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = (*model_of(8, 2), "max_target_length=448", "page_size=16", "max_num_batched_tokens=64")
    mesh = {"enable_dp_attention": True, "attn_dp_weights": "sharded"}
    engine, _ = tiny_engine(*argv, "ici_tensor_parallelism=8", devices=8, **mesh)
    alone, _ = tiny_engine(*argv)
    random = np.random.default_rng(7)
    lengths = [1, 400, *random.integers(1, 401, 62).tolist()]
    requests = [request(one, max_new_tokens=8) for one in prompts(*lengths, seed=8)]
    plan, queued = Scheduler.plan, []

    def watched(scheduler: Scheduler):
        made = plan(scheduler)
        if scheduler.num_waiting:
            queued.append(scheduler.num_waiting)
            assert all(made), "a rank has nothing to do while requests wait"
        return made

    monkeypatch.setattr(Scheduler, "plan", watched)
    arrivals = np.sort(random.integers(0, 60, len(requests)))
    found: dict[int, list[int]] = {}
    step = 0
    while len(found) < len(requests) or engine.num_running or engine.num_waiting:
        for one in np.flatnonzero(arrivals == step):
            found[engine.add(requests[one])] = []
        for event in engine.step():
            found[event.id] += event.tokens
        step += 1
    assert max(queued) > 4
    monkeypatch.undo()
    assert list(found.values()) == [generate(alone, [one])[0] for one in requests]


def lowered(
    *argv: str, devices: int = 8, layers: int = 1, tokens: int = 4, pages: int = 1024, **mesh: Any
) -> tuple[Lowered, Layout]:
    """A step from shapes alone: four sequences of each rank, `pages` of all ranks."""
    own = (f"base_num_decoder_layers={layers}", "base_num_query_heads=24", *argv)
    given = {text.split("=", 1)[0]: text for text in (*T0, "ici_fsdp_parallelism=1", *own)}
    config = load(list(given.values()), {}).config
    model = architecture(config.model, weight_dtype="float32")
    asked = config.mesh.model_copy(update=mesh)
    layout = serving_layout(asked, config.model, jax.devices()[:devices])
    ranks = layout.ways("pages")
    limits = Limits(ranks, 4, tokens, pages // ranks, 4, LENGTH, prefix_caching=False)
    found = lower_step(
        Step(model, "float32", logits_in_float32=False, vocab_size=VOCAB),
        abstract_params(model, layout, dtype="float32"),
        abstract_cache(model, layout, limits, "float32"),
        layout,
        shape=StepShape(ranks, tokens, 4, LENGTH // 4),
        mode=Mode(),
    )
    return found, layout


TWO_SUPERGROUPS = ("ici_data_parallelism=2", "ici_tensor_parallelism=4")
ON = {"enable_dp_attention": True}


@functools.cache
def counted(weights: str, layers: int, tokens: int) -> list[Collective]:
    """The collectives of a step on two supergroups of two groups of two devices."""
    made, layout = lowered(
        *TWO_SUPERGROUPS, layers=layers, tokens=tokens, attn_dp_weights=weights, **ON
    )
    assert dict(layout.mesh.shape) == {"data": 2, "attn_dp": 2, "expert": 1, "model": 2}
    return collectives(made.compile(), layout.mesh)


@pytest.mark.parametrize(
    ("weights", "tokens"),
    [
        ("sharded", 4),
        ("replicated", 4),
        pytest.param("sharded", 64, marks=pytest.mark.slow),
        pytest.param("replicated", 64, marks=pytest.mark.slow),
    ],
)
def test_a_step_gathers_no_cache_and_never_leaves_its_supergroup(weights: str, tokens: int) -> None:
    found = counted(weights, 1, tokens)
    # 256 pages of 4 tokens, a head's keys and values of 8 in float32.
    cache_bytes = 256 * 4 * 2 * 8 * 4
    assert {one.kind for one in found} >= {"all-to-all", "all-gather", "all-reduce"}
    for one in found:
        assert "data" not in one.axes, one
        assert all(array.num_bytes < cache_bytes for array in one.arrays), one


ALL = ("attn_dp", "model")
LAYER = {
    # Two norms, the sums of attention and of the feed-forward layer, what each of these reads.
    "sharded": {("all-to-all", ("attn_dp",)): 2, ("all-gather", ALL): 2, ("all-reduce", ALL): 4},
    # Attention sums over its own group, and passes tokens on, not heads. The scale of its norm
    # has to be gathered, as its tokens are.
    "replicated": {
        ("all-to-all", ("attn_dp",)): 2,
        ("all-gather", ("attn_dp",)): 1,
        ("all-gather", ("model",)): 1,
        ("all-gather", ALL): 1,
        ("all-reduce", ("model",)): 1,
        ("all-reduce", ALL): 3,
    },
}


@pytest.mark.parametrize("weights", LAYER)
def test_a_layer_of_a_decode_step_does_what_its_table_needs_and_no_more(weights: str) -> None:
    one, two = (
        Counter((each.kind, each.axes) for each in counted(weights, layers, 4)) for layers in (1, 2)
    )
    assert two - one == LAYER[weights]


def argument_bytes(pages: int, **mesh: Any) -> int:
    """Bytes of a device that a step is given, with eight devices, 2 heads of the cache."""
    found = memory(lowered("ici_tensor_parallelism=8", pages=pages, **mesh)[0].compile())
    assert found is not None
    return found.arguments


def test_caches_and_projections_are_smaller_by_the_number_of_groups() -> None:
    plain = argument_bytes(2048) - argument_bytes(1024)
    sharded, replicated = ({**ON, "attn_dp_weights": name} for name in ("sharded", "replicated"))
    small = argument_bytes(1024, **sharded)
    assert plain == 4 * (argument_bytes(2048, **sharded) - small) == 1024 * 4 * 2 * 8 * 4
    # Queries and outputs: 64 x 24 x 8 numbers each over two devices, or over eight.
    projections = 2 * 64 * 24 * 8 * 4
    assert argument_bytes(1024, **replicated) - small == projections // 2 - projections // 8


@pytest.mark.parametrize("kv_heads", [2, 8])
def test_one_group_is_the_very_program_that_there_is_without(kv_heads: int) -> None:
    argv = ("ici_tensor_parallelism=8", f"base_num_kv_heads={kv_heads}")
    groups = 1 if kv_heads == 2 else -1
    off, on = lowered(*argv), lowered(*argv, ici_attn_dp_parallelism=groups, **ON)
    assert off[1] == on[1]
    assert off[0].as_text() == on[0].as_text()

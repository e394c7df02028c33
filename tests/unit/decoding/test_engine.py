"""Greedy tokens are those of whole forward passes, however requests are mixed, split and cut."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from maxtext.decoding.load import as_read, make_engine, serving_params
from maxtext.decoding.requests import Event, Request, Sampling
from maxtext.parallel.layout import use_layout
from maxtext.parallel.params import shardings
from tiny import GEMMA2, GEMMA3, LENGTH, QWEN3
from tiny_engine import (
    assert_greedy,
    generate,
    prompts,
    request,
    run,
    tiny_engine,
    tiny_served,
    tokens_of,
    weights,
)

MIXED = (1, 7, LENGTH - 1, 22, 3, 4, 5, 17, 2)
FAMILIES = {
    "llama": (),
    "llama_mqa": (
        "base_num_kv_heads=1",
        "rope_type=llama3.1",
        "original_max_position_embeddings=8",
    ),
    "qwen3": QWEN3,
    "qwen2": ("decoder_block=qwen2", "sliding_window_size=9", "attention_bias=true"),
    "gemma2": GEMMA2,
    "gemma3": (*GEMMA3, "base_num_decoder_layers=7"),
}
FAST = ("llama",)
# For what is about requests, not about layers: half as long to compile.
ONE_LAYER = "base_num_decoder_layers=1"
TENSOR2 = ("ici_tensor_parallelism=2", "ici_fsdp_parallelism=1")
TENSOR4 = ("ici_tensor_parallelism=4", "ici_fsdp_parallelism=1")
DATA2 = ("ici_data_parallelism=2", "ici_fsdp_parallelism=1")
OFF = ("enable_prefix_caching=false",)
BOTH = ("ici_data_parallelism=2", "ici_tensor_parallelism=4", "ici_fsdp_parallelism=1")


@pytest.mark.parametrize(
    "family",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_greedy_tokens_are_those_of_forward_passes(family: str) -> None:
    engine, served = tiny_engine(*FAMILIES[family])
    requests = [request(tokens) for tokens in prompts(*MIXED)]
    together = generate(engine, requests)
    assert_greedy(served, requests, together)
    # Alone, and with pages that are known: the text does not depend on its neighbours.
    assert engine.num_free_pages == engine.num_pages
    assert engine.num_cached_tokens == 0
    assert generate(engine, requests[3:4]) == together[3:4]
    assert engine.num_cached_tokens == 20


@pytest.fixture
def all_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are turned however short their rows, as those of large models are on a CPU."""
    monkeypatch.setattr("maxtext.decoding.load._LONG", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("all_turned")
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_do_not_depend_on_fused_projections(family: str) -> None:
    devices = 1 if family == "llama_mqa" else 2
    mesh = TENSOR2 if devices == 2 else ()
    argv = (*FAMILIES[family], "fused_qkv=true", "fused_mlp=true", *mesh)
    engine, served = tiny_engine(*argv, devices=devices)
    requests = [request(tokens) for tokens in prompts(*MIXED)]
    assert_greedy(served, requests, generate(engine, requests))


@pytest.mark.parametrize(
    ("argv", "devices"),
    [
        (TENSOR4, 4),
        (DATA2, 2),
        pytest.param(TENSOR2, 2, marks=pytest.mark.slow),
        pytest.param(BOTH, 8, marks=pytest.mark.slow),
        pytest.param(("ici_fsdp_parallelism=2",), 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("all_turned")
def test_tokens_do_not_depend_on_the_mesh(argv: tuple[str, ...], devices: int) -> None:
    engine, served = tiny_engine(*argv, devices=devices)
    requests = [request(tokens) for tokens in prompts(*MIXED)]
    assert_greedy(served, requests, generate(engine, requests))


def test_long_kernels_are_turned_and_given_up() -> None:
    served = tiny_served("base_mlp_dim=512")
    model, layout = served.architecture, served.layout
    stored = jax.device_put(weights(served), shardings(served.specs, layout))
    with use_layout(layout):
        params = serving_params(model, stored, layout, dtype="float32")
        read = as_read(model, params, layout)
    for before, after, want in zip(
        params.decoder.groups["layers"],
        read.decoder.groups["layers"],
        weights(served).decoder.groups["layers"].mlp.wo.kernel,
        strict=True,
    ):
        assert before.mlp.wo.kernel.is_deleted()
        np.testing.assert_array_equal(after.mlp.wo.kernel.rows, want.T)
        # Their rows are short.
        assert after.mlp.wi_0.kernel is before.mlp.wi_0.kernel
        assert after.self_attention.out.kernel is before.self_attention.out.kernel


@pytest.mark.slow
@pytest.mark.parametrize(("argv", "devices"), [(TENSOR4, 4), (DATA2, 2)])
def test_draws_do_not_depend_on_the_mesh(argv: tuple[str, ...], devices: int) -> None:
    drawn = [request(one, temperature=1.0, top_p=0.9, seed=3) for one in prompts(7, 5)]
    want = generate(tiny_engine(ONE_LAYER)[0], drawn[::-1])[::-1]
    assert generate(tiny_engine(*argv, ONE_LAYER, devices=devices)[0], drawn) == want


@pytest.mark.parametrize(
    ("argv", "devices"),
    [
        (("num_pages=12",), 1),
        pytest.param(("num_pages=16", *DATA2), 2, marks=pytest.mark.slow),
        pytest.param(("num_pages=12", *OFF, *TENSOR2), 2, marks=pytest.mark.slow),
    ],
)
def test_a_request_that_loses_its_pages_goes_on_where_it_was(
    argv: tuple[str, ...], devices: int
) -> None:
    # A prompt in chunks of 6 tokens; all need 25 pages of 4 tokens.
    small = ("max_num_batched_tokens=6", "max_num_seqs=3")
    engine, served = tiny_engine(*small, *argv, ONE_LAYER, devices=devices)
    requests = [request(tokens) for tokens in prompts(7, 17, 2, 21, 6)]
    assert_greedy(served, requests, generate(engine, requests))
    assert engine.num_preempted > 0
    assert engine.num_free_pages == engine.num_pages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "devices"),
    [
        (OFF, 1),
        (("page_size=7",), 1),
        (DATA2, 2),
        # Too few pages for all of them: each needs up to eight.
        (("num_pages=40",), 1),
        (("num_pages=48", *DATA2, *OFF), 2),
        (("num_pages=40", *TENSOR2), 2),
        (("num_pages=40", *TENSOR4, *OFF), 4),
    ],
)
def test_32_requests_at_once(argv: tuple[str, ...], devices: int) -> None:
    engine, served = tiny_engine("max_num_seqs=32", ONE_LAYER, *argv, devices=devices)
    lengths = [1 + 7 * place % 29 for place in range(32)]
    requests = [request(tokens) for tokens in prompts(*lengths)]
    # Half of them begin alike.
    shared = prompts(9)[0]
    requests[::2] = [request((*shared, *one.tokens)[:28]) for one in requests[::2]]
    assert_greedy(served, requests, generate(engine, requests))
    again = generate(engine, requests)
    assert_greedy(served, requests, again)
    assert (engine.num_cached_tokens > 0) == (OFF[0] not in argv)
    assert (engine.num_preempted > 0) == argv[0].startswith("num_pages")
    assert engine.num_free_pages == engine.num_pages


def test_requests_end_where_they_ask_to_and_may_be_given_up() -> None:
    engine, _ = tiny_engine(ONE_LAYER)
    prompt = prompts(7)[0]
    [events] = run(engine, [request(prompt)])
    tokens = tokens_of(events)
    assert [event.finish_reason for event in events] == [None] * 9 + ["length"]

    third = tokens.index(tokens[2])
    [events] = run(engine, [request(prompt, eos_ids=(255, tokens[2]))])
    assert (tokens_of(events), events[-1].finish_reason) == (tokens[:third], "eos")
    [events] = run(engine, [request(prompt, eos_ids=(tokens[2],), ignore_eos=True)])
    assert (tokens_of(events), events[-1].finish_reason) == (tokens, "length")

    first = engine.add(request(prompt))
    second = engine.add(request(prompt))
    engine.step()
    engine.cancel(first)
    engine.cancel(first)
    events = engine.step()
    assert {(event.id, event.finish_reason) for event in events} == {
        (first, "cancelled"),
        (second, None),
    }
    assert engine.num_running == 1
    engine.cancel(second)
    assert engine.num_free_pages == engine.num_pages
    assert [event.id for event in engine.step()] == [second]
    assert engine.step() == []


def test_settings_follow_their_request() -> None:
    engine, _ = tiny_engine(ONE_LAYER)
    prompt = prompts(7)[0]
    greedy = request(prompt)
    kinds = [
        greedy,
        request(prompt, temperature=1.5, seed=1),
        request(prompt, temperature=1.5, seed=2),
        request(prompt, temperature=0.7, seed=1, top_k=1),
        request(prompt, repetition_penalty=1e6),
        request(prompt, logprobs=3),
    ]
    events = run(engine, kinds)
    found = [tokens_of(one) for one in events]
    assert generate(engine, kinds[::-1]) == found[::-1]
    assert found[3] == found[5] == found[0] == generate(engine, [greedy])[0]
    assert found[1] != found[2]
    # Nothing is said twice.
    assert len({*prompt, *found[4]}) == len(prompt) + 10

    assert not any(event.logprobs for event in events[0])
    logprobs = events[5][0].logprobs[0]
    assert len(logprobs.top) == 3
    assert next(iter(logprobs.top)) == found[0][0]
    assert logprobs.top[found[0][0]] == logprobs.chosen < 0


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Grows by one with each program that JAX compiles."""
    found: list[str] = []

    def listen(event: str, _: float, **__: object) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_nothing_is_compiled_after_warming_up(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = tiny_engine("max_num_seqs=1", "max_num_batched_tokens=16", ONE_LAYER)
    monkeypatch.setattr("maxtext.decoding.engine._TELL_EVERY", 0.0)
    said: list[str] = []
    engine.warm_up(said.append)
    assert said[0] == f"compiling all {len(engine.programs)} shapes of steps"
    assert said[-1].startswith(f"compiled {len(engine.programs)} of {len(engine.programs)} in ")
    assert said[-1].endswith(" s, 0 s left")
    warm, seconds = len(compilations), engine.stats.compile_seconds
    assert warm > 0
    prompt = prompts(20)[0]
    for sampling in (
        {},
        {"temperature": 1.0, "top_k": 5, "seed": 1},
        {"repetition_penalty": 1.5},
        {"logprobs": 2},
        {"temperature": 0.5, "repetition_penalty": 1.5, "logprobs": 0, "top_p": 0.5},
    ):
        run(engine, [request(prompt[:7], **sampling), request(prompt, **sampling)])
    assert (len(compilations), engine.stats.compile_seconds) == (warm, seconds)


def logprobs_of(dtype: str, given: list[tuple[int, ...]]) -> list[list[Event]]:
    cache = f"kv_cache_dtype={dtype}"
    served = tiny_served("max_num_seqs=3", "enable_prefix_caching=false", cache)
    # As they are drawn: larger ones make more of each rounding.
    drawn = jax.tree.map(lambda leaf: leaf / 3, weights(served))
    engine = make_engine(served, jax.device_put(drawn, shardings(served.specs, served.layout)))
    return run(engine, [request(one, logprobs=20) for one in given])


@pytest.mark.slow
def test_small_caches_err_by_their_rounding_alone() -> None:
    given = prompts(12, 17, 20)
    wanted = logprobs_of("float32", given)
    # Of the likeliest tokens' log probabilities, which spread by 1.3.
    for dtype, bound in (("bfloat16", 0.02), ("int8", 0.05)):
        worst = 0.0
        for want, got in zip(wanted, logprobs_of(dtype, given), strict=True):
            for one, other in zip(want, got, strict=True):
                top, others = one.logprobs[0].top, other.logprobs[0].top
                both = top.keys() & others.keys()
                assert len(both) >= 15
                worst = max(worst, *(abs(top[token] - others[token]) for token in both))
                if one.tokens != other.tokens:
                    # Greedy texts part at a near tie only.
                    assert top[one.tokens[0]] - top[other.tokens[0]] < 2 * bound
                    break
        assert bound / 5 < worst < bound, dtype


def test_what_does_not_fit_is_refused() -> None:
    engine, _ = tiny_engine("num_pages=5", "max_num_seqs=1", ONE_LAYER)
    for tokens, new, message in (
        ((), 1, "has no tokens"),
        ((1, 256), 1, "id 256; tokens are 0 to 255"),
        ((1,) * 30, 3, "30 tokens of the prompt and max_new_tokens=3 exceed max_target_length=32"),
        ((1,) * 18, 3, "exceed the 20 that the pages"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.add(Request(tokens, Sampling(max_new_tokens=new)))
    assert engine.num_waiting == 0

"""The degree of attention data parallelism, its variants, and what it refuses."""

from collections.abc import Callable

import pytest

from maxtext.config.attention_dp import AttentionDP, announcement, attention_dp, derived_degree
from maxtext.config.errors import Problem
from maxtext.config.load import load
from maxtext.config.schema import Config

type Problems = Callable[..., tuple[Problem, ...]]

DEGREES = [
    (8, 2, 4, 2), (8, 4, 2, 4), (8, 8, 1, 8), (16, 8, 2, 8), (8, 16, 1, 8), (64, 8, 8, 8),
    (8, 1, 8, 1), (8, 3, 8, 1), (6, 3, 2, 3), (12, 8, 3, 4), (8, 12, 2, 4), (1, 5, 1, 1),
]  # fmt: skip
# (tensor, degree asked for, query heads, key and value heads) to (degree, model, variant).
VARIANTS = [
    ((64, 8, 64, 8), (8, 8, "Q only")),
    ((32, 4, 64, 8), (4, 8, "Q only")),
    ((8, 4, 32, 8), (4, 2, "Q+K+V")),
    ((8, -1, 64, 8), (1, 8, "off")),
    ((6, -1, 9, 3), (2, 3, "replicated")),
]


def made(tensor: int, heads: int, kv_heads: int, **mesh: object) -> AttentionDP:
    base: Config = load([], {}).config
    sizes = {"num_query_heads": heads, "num_kv_heads": kv_heads}
    mesh = {"ici_tensor_parallelism": tensor, "enable_dp_attention": True, **mesh}
    return attention_dp(base.mesh.model_copy(update=mesh), base.model.model_copy(update=sizes))


@pytest.mark.parametrize(("tensor", "kv_heads", "groups", "model"), DEGREES)
def test_the_derived_degree_is_the_smallest_that_caches_no_head_twice(
    tensor: int, kv_heads: int, groups: int, model: int
) -> None:
    assert derived_degree(tensor, kv_heads) == groups
    fewer = [n for n in range(1, groups) if tensor % n == 0]
    assert all(kv_heads % (tensor // n) for n in fewer)
    found = made(tensor, 8 * kv_heads, kv_heads)
    assert (found.attn_dp, found.model) == (groups, model)


@pytest.mark.parametrize(("given", "want"), VARIANTS)
def test_the_variant_follows_from_the_heads(
    given: tuple[int, int, int, int], want: tuple[int, int, str]
) -> None:
    tensor, asked, heads, kv_heads = given
    found = made(tensor, heads, kv_heads, ici_attn_dp_parallelism=asked)
    assert (found.attn_dp, found.model, found.variant) == want
    assert found.why


def test_it_is_off_unless_asked_for_and_by_a_degree_of_one() -> None:
    off = load(["ici_tensor_parallelism=8"], {}).config
    assert attention_dp(off.mesh, off.model).variant == "off"
    assert made(8, 8, 2, ici_attn_dp_parallelism=1).variant == "off"
    asked = made(8, 8, 2, enable_dp_attention=False, ici_attn_dp_parallelism=4)
    assert (asked.attn_dp, asked.variant) == (4, "Q only")
    assert made(8, 8, 2, attn_dp_weights="replicated").variant == "replicated"


ANNOUNCED = [
    (("ici_tensor_parallelism=8",), None),
    (
        ("ici_tensor_parallelism=8", "enable_dp_attention=true"),
        "4 groups of 2, Q only: 2 key and value heads on 8 devices; 8 query heads divide over 8 "
        "devices, 2 key heads not",
    ),
    (
        ("ici_tensor_parallelism=2", "enable_dp_attention=true"),
        "off: 2 key and value heads on 2 devices, of which none is held twice",
    ),
    (
        ("ici_tensor_parallelism=8", "ici_attn_dp_parallelism=8", "attn_dp_weights=replicated"),
        "8 groups of 1, replicated: ici_attn_dp_parallelism=8; attn_dp_weights=replicated",
    ),
    (("ici_attn_dp_parallelism=1",), "off: ici_attn_dp_parallelism=1"),
]


@pytest.mark.parametrize(("argv", "want"), ANNOUNCED)
def test_what_is_asked_of_it_is_answered_with_the_reason(
    argv: tuple[str, ...], want: str | None
) -> None:
    heads = ("base_num_query_heads=8", "base_num_kv_heads=2")
    config = load([*heads, *argv], {}, shapes_only=True).config
    text = announcement(config.mesh, config.model)
    assert text == (want and f"attention data parallelism: {want}")


SERVED = "load_parameters_path=missing"
REFUSED = [
    ("ici_attn_dp_parallelism=0", "must be -1 or at least 1", "-1 derives it"),
    (
        "ici_tensor_parallelism=8 ici_attn_dp_parallelism=3",
        "8 devices do not divide over 3 groups",
        "may be 4, 8",
    ),
    (
        "ici_tensor_parallelism=8 ici_attn_dp_parallelism=2",
        "2 key and value heads do not divide over the 4 devices of a group",
        "may be 4, 8",
    ),
    (
        "ici_tensor_parallelism=8 ici_attn_dp_parallelism=2 base_num_query_heads=9",
        "9 query heads do not divide over the 4 devices of a group",
        "may be 8",
    ),
    (
        "ici_tensor_parallelism=6 base_num_query_heads=9 base_num_kv_heads=3 base_emb_dim=576 "
        "vocab_size=258 enable_dp_attention=true attn_dp_weights=sharded",
        "9 query heads do not divide over 6 devices",
        "use attn_dp_weights=replicated or auto, or ici_tensor_parallelism of 1, 3, 9",
    ),
    ("ici_tensor_parallelism=6 enable_dp_attention=true", "256 does not divide over 6", "4, 8"),
    (
        "ici_tensor_parallelism=6 enable_dp_attention=true",
        "512 does not divide over 6",
        "may be 1, 2, 4, 8",
    ),
    (
        "ici_tensor_parallelism=5 enable_dp_attention=true base_mlp_dim=9",
        "9 does not divide over 5",
        "may be 1, 3, 9",
    ),
    (
        "ici_tensor_parallelism=8 ici_attn_dp_parallelism=4 enable_dp_attention=false",
        "one turns off what the other asks for",
        "keep one",
    ),
    (
        "ici_tensor_parallelism=-1 ici_fsdp_parallelism=1 enable_dp_attention=true",
        "needs to know the devices",
        "such as 8",
    ),
    ("attn_dp_weights=sharded", "would be ignored", "enable_dp_attention=true"),
    (
        "ici_tensor_parallelism=8 enable_dp_attention=true ici_fsdp_parallelism=2",
        "has no such axis",
        "ici_fsdp_parallelism=1; requests split over ici_data_parallelism",
    ),
    (
        "ici_tensor_parallelism=8 enable_dp_attention=true ici_context_parallelism=2",
        "has no such axis",
        "ici_context_parallelism=1",
    ),
    (
        "ici_tensor_parallelism=8 enable_dp_attention=true fused_qkv=true",
        "keeps each key with its queries",
        "attn_dp_weights=replicated, or fused_qkv=false",
    ),
    (
        "ici_tensor_parallelism=8 enable_dp_attention=true logical_axis_rules={'mlp':[]}",
        "a mesh and rules of its own",
        "leave it out",
    ),
]


@pytest.mark.parametrize(("arguments", "message", "hint"), REFUSED)
def test_what_cannot_be_says_what_would_work(
    arguments: str, message: str, hint: str, problems: Problems
) -> None:
    found = problems(SERVED, *arguments.split(" "), from_checkpoint=True)
    [one, *_] = [problem for problem in found if message in problem.message]
    assert hint in one.hint
    assert str(one).count("\n") <= 1


@pytest.mark.parametrize("asked", ["enable_dp_attention=true", "ici_attn_dp_parallelism=4"])
def test_training_has_no_requests_to_split(asked: str, problems: Problems) -> None:
    [problem] = problems("ici_tensor_parallelism=8", asked)
    assert "4 groups of devices would serve requests" in problem.message
    assert "ici_attn_dp_parallelism=1" in problem.hint
    load(["ici_tensor_parallelism=2", "enable_dp_attention=true"], {})
    load(["ici_tensor_parallelism=8", "enable_dp_attention=true", "ici_attn_dp_parallelism=1"], {})

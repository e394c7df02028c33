import jax.numpy as jnp
import pytest

from maxtext.config.load import load
from maxtext.config.schema import ModelConfig
from maxtext.metrics.flops import TrainFlops, train_flops
from maxtext.models.registry import architecture
from maxtext.parallel.params import Param
from tiny import T0

MODEL = load(T0, {}).config.model
TIED = MODEL.model_copy(update={"logits_via_embedding": True})


def flops_of(model: ModelConfig, *, attention: str, length: int) -> TrainFlops:
    whole = architecture(model, weight_dtype="float32")
    return train_flops(weights(model), whole, attention=attention, length=length)


def weights(model: ModelConfig) -> dict[str, Param]:
    shapes = {
        "decoder/layers/pre_self_attention_layer_norm/scale": (2, 64),
        "decoder/layers/self_attention/query/kernel": (2, 64, 8, 8),
        "decoder/layers/self_attention/key/kernel": (2, 64, 2, 8),
        "decoder/layers/self_attention/value/kernel": (2, 64, 2, 8),
        "decoder/layers/self_attention/out/kernel": (2, 8, 8, 64),
        "decoder/layers/mlp/wi_0/kernel": (2, 64, 128),
        "decoder/layers/mlp/wi_1/kernel": (2, 64, 128),
        "decoder/layers/mlp/wo/kernel": (2, 128, 64),
        "decoder/decoder_norm/scale": (64,),
        "token_embedder/embedding": (256, 64),
    }
    if not model.logits_via_embedding:
        shapes["decoder/logits_dense/kernel"] = (64, 256)
    return {
        name: Param(
            shape, (None,) * len(shape), lambda key, size, dtype: jnp.zeros(size, dtype), "float32"
        )
        for name, shape in shapes.items()
    }


def test_blocks_of_queries_leave_out_the_pairs_after_their_end() -> None:
    # 256 tokens in 4 blocks: (1 + 2 + 3 + 4) / 16 of all pairs.
    attention = flops_of(MODEL, attention="dot_product", length=256).attention
    assert attention == 12 * 2 * 256 * 8 * 8 * 10 // 16


@pytest.mark.parametrize(("attention", "want"), [("dot_product", 49_152), ("flash", 24_576)])
def test_attention_costs_all_pairs_or_the_causal_half(attention, want) -> None:
    assert flops_of(MODEL, attention=attention, length=32).attention == want


@pytest.mark.parametrize("model", [MODEL, TIED], ids=["untied", "tied"])
def test_the_head_is_counted_once_whichever_weight_it_is(model) -> None:
    assert flops_of(model, attention="flash", length=32).weights == 516_096


WINDOW = MODEL.model_copy(update={"sliding_window_size": 64})
GEMMA3 = WINDOW.model_copy(update={"decoder_block": "gemma3", "num_decoder_layers": 8})


def test_a_window_leaves_out_what_it_hides() -> None:
    # Two layers of 8 heads of 8; of 256 tokens the first 64 see half of a square, the rest 64 each.
    flash = flops_of(WINDOW, attention="flash", length=256).attention
    assert flash == 12 * 2 * 64 * (64 * 64 / 2 + 192 * 64) / 256
    # Four blocks of 64 queries; each but the first is multiplied with the block before it too.
    blocks = flops_of(WINDOW, attention="dot_product", length=256).attention
    assert blocks == 12 * 2 * 64 * (64 * 64 + 3 * 64 * 128) / 256


def test_a_window_as_long_as_the_row_changes_nothing() -> None:
    for attention in ("flash", "dot_product"):
        wide = flops_of(WINDOW, attention=attention, length=64)
        assert wide.attention == flops_of(MODEL, attention=attention, length=64).attention


def test_layers_count_by_their_kind() -> None:
    # Of Gemma 3's 8 layers, the sixth sees everything.
    local = 64 * 64 / 2 + 192 * 64
    attention = flops_of(GEMMA3, attention="cudnn_flash_te", length=256).attention
    assert attention == 12 * 64 * (7 * local + 256 * 256 / 2) / 256


def test_a_token_costs_weights_and_attention() -> None:
    assert flops_of(MODEL, attention="dot_product", length=32).per_token == 565_248


def test_a_longer_row_changes_attention_alone() -> None:
    short, long = (flops_of(MODEL, attention="flash", length=length) for length in (32, 96))
    assert long.attention == 3 * short.attention
    assert long.weights == short.weights


def test_a_weight_of_an_unknown_kind_is_not_passed_over() -> None:
    strange = {"decoder/router/table": weights(MODEL)["token_embedder/embedding"]}
    with pytest.raises(AssertionError, match="decoder/router/table"):
        train_flops(
            strange, architecture(MODEL, weight_dtype="float32"), attention="flash", length=32
        )

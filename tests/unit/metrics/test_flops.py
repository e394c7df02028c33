import jax.numpy as jnp
import pytest

from maxtext.config.schema import ModelConfig
from maxtext.metrics.flops import train_flops
from maxtext.parallel.params import Param

T0 = ModelConfig(
    decoder_block="llama2",
    emb_dim=64,
    num_query_heads=8,
    num_kv_heads=2,
    head_dim=8,
    mlp_dim=128,
    num_decoder_layers=2,
    vocab_size=256,
    mlp_activations=("silu", "linear"),
    logits_via_embedding=False,
    normalization_layer_epsilon=1e-5,
    use_qk_norm=False,
    rope_type="default",
    rope_max_timescale=1e4,
    rope_factor=8.0,
    rope_low_freq_factor=1.0,
    rope_high_freq_factor=4.0,
    original_max_position_embeddings=8192,
    max_position_embeddings=32,
    dense_init_scale=1.0,
)
TIED = T0.model_copy(update={"logits_via_embedding": True})


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
    attention = train_flops(weights(T0), T0, attention="dot_product", length=256).attention
    assert attention == 12 * 2 * 256 * 8 * 8 * 10 // 16


@pytest.mark.parametrize(("attention", "want"), [("dot_product", 49_152), ("flash", 24_576)])
def test_attention_costs_all_pairs_or_the_causal_half(attention, want) -> None:
    assert train_flops(weights(T0), T0, attention=attention, length=32).attention == want


@pytest.mark.parametrize("model", [T0, TIED], ids=["untied", "tied"])
def test_the_head_is_counted_once_whichever_weight_it_is(model) -> None:
    assert train_flops(weights(model), model, attention="flash", length=32).weights == 516_096


def test_a_token_costs_weights_and_attention() -> None:
    assert train_flops(weights(T0), T0, attention="dot_product", length=32).per_token == 565_248


def test_a_longer_row_changes_attention_alone() -> None:
    short, long = (
        train_flops(weights(T0), T0, attention="flash", length=length) for length in (32, 96)
    )
    assert long.attention == 3 * short.attention
    assert long.weights == short.weights


def test_a_weight_of_an_unknown_kind_is_not_passed_over() -> None:
    strange = {"decoder/router/table": weights(T0)["token_embedder/embedding"]}
    with pytest.raises(AssertionError, match="decoder/router/table"):
        train_flops(strange, T0, attention="flash", length=32)

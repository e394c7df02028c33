"""FLOPs by formula against what XLA counts in the compiled forward and backward pass."""

import jax
import pytest

from maxtext.metrics.flops import train_flops
from maxtext.parallel.params import named_leaves
from tiny import tiny_setup

LENGTH = 256
# Wide enough that what is no product is little; unrolled, because XLA counts the body of a loop
# once; nothing computed anew, because that is no work of the model.
SIZES = (
    "base_emb_dim=256",
    "base_mlp_dim=640",
    "base_num_query_heads=4",
    "base_num_kv_heads=2",
    "head_dim=128",
    "vocab_size=512",
    "base_num_decoder_layers=2",
    "scan_layers=false",
    "remat_policy=none",
    f"max_target_length={LENGTH}",
    "per_device_batch_size=1",
)
FAMILIES = {
    "llama2": (),
    "mistral": ("sliding_window_size=60",),
    "qwen2": ("attention_bias=true", "logits_via_embedding=true"),
    "qwen3": ("use_qk_norm=true",),
    "gemma2": (
        "sliding_window_size=60",
        "attn_logits_soft_cap=50",
        "final_logits_soft_cap=30",
        "mlp_activations=gelu,linear",
        "logits_via_embedding=true",
    ),
    "gemma3": (
        "sliding_window_size=60",
        "local_rope_max_timescale=1e3",
        "use_qk_norm=true",
        "mlp_activations=gelu,linear",
        "base_num_decoder_layers=6",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_flops_agree_with_what_xla_counts(family: str) -> None:
    setup = tiny_setup(*SIZES, f"decoder_block={family}", *FAMILIES[family])
    loss = setup.loss_fn(dropout=False)
    step = jax.jit(jax.value_and_grad(lambda params, batch: loss(params, batch).cross_entropy))
    lowered = step.lower(setup.abstract.params, setup.abstract_batch((1, LENGTH)))
    counted = lowered.compile().cost_analysis()["flops"]
    # `dot_product` runs here, so the pairs are those of its blocks of queries. Windows leave some
    # of them out, which shows: attention is more than a tenth of the whole.
    flops = train_flops(
        named_leaves(setup.specs), setup.architecture, attention="dot_product", length=LENGTH
    )
    assert flops.attention > 0.1 * flops.per_token
    assert counted == pytest.approx(flops.per_token * LENGTH, rel=0.05)

"""Every key a user can set: its type, its unit and its meaning, declared once.

The user sees flat keys (`base_emb_dim=64`), code sees frozen sections (`config.model.emb_dim`).
Here are the keys of the run, the model and where it runs; those of training and of serving lie
beside. Defaults live in `configs/base.yml` alone; a test holds the two equal.
"""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from pydantic import PositiveInt as Positive

from maxtext.config.schema_pipeline import PipelineConfig
from maxtext.config.schema_serving import DecodeConfig, PlanConfig, ServeConfig, VllmConfig
from maxtext.config.schema_training import (
    CheckpointConfig,
    DataConfig,
    MetricsConfig,
    OptimizerConfig,
    ProfileConfig,
    TrainingConfig,
)
from maxtext.config.section import Count, FloatType, Section, key

type Stretch = Annotated[float, Field(ge=1.0)]
type Tensor = Literal["remat", "device", "offload"]
type Rules = tuple[tuple[str, tuple[str, ...]], ...]

# The mesh axes, and what the user calls the degree of each: `ici_<name>_parallelism`.
DEGREES = {
    "data": "data",
    "stage": "pipeline",
    "fsdp": "fsdp",
    "context": "context",
    "expert": "expert",
    "tensor": "tensor",
    "tensor_sequence": "tensor_sequence",
}


class RunConfig(Section):
    """Which run this is and where it writes."""

    model_name: str = key(
        "A file of `configs/models` without `.yml`, a path that ends in `.yml`, or `default`: the "
        "model that is stored with the weights, or else that of base.yml."
    )
    override_model_config: bool = key("Let what the user sets contradict the file of `model_name`.")
    run_name: str = key(
        "Name of the run, and of its folder. A run that is started again under its name resumes. "
        "Empty: model name and time, a new run at every start."
    )
    base_output_directory: str = key(
        "Folder of all runs; a run writes to `<base_output_directory>/<run_name>`."
    )
    print_config: bool = key("Print each value and where it came from, then exit.")
    log_config: bool = key("Log the resolved config at the start of a run.")
    debug_sharding: bool = key(
        "Write how each weight and each activation lies on the devices to "
        "`<base_output_directory>/<run_name>/sharding`."
    )
    jax_cache_dir: str = key(
        "Folder of JAX's persistent compilation cache; empty turns it off. `~` is the home folder."
    )
    skip_jax_distributed_system: bool = key(
        "Stay a single process even where a cluster (SLURM, MPI, TPU pod) is detected."
    )
    jax_distributed_initialization_timeout: Positive = key(
        "Seconds to wait for the other processes at the start."
    )


class ModelConfig(Section):
    """What the model is: all that its weights and its function depend on."""

    decoder_block: Literal["llama2", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"] = key(
        "Model family: `llama2` is every Llama up to 3.3, `qwen2` also Qwen2.5, `qwen3` the dense "
        "Qwen3, `gemma3` the text part of Gemma 3. The first four are one layer; other keys tell "
        "them apart."
    )
    emb_dim: Positive = key("Width of the residual stream.", name="base_emb_dim")
    num_query_heads: Positive = key("Query heads.", name="base_num_query_heads")
    num_kv_heads: Positive = key(
        "Key and value heads: equal to the query heads for MHA, 1 for MQA, between for GQA.",
        name="base_num_kv_heads",
    )
    head_dim: Positive = key("Width of one head.")
    mlp_dim: Positive = key("Width of the feed-forward layer.", name="base_mlp_dim")
    num_decoder_layers: Positive = key("Decoder layers.", name="base_num_decoder_layers")
    vocab_size: Positive = key("Rows of the embedding; at least the tokenizer's size.")
    mlp_activations: tuple[Literal["silu", "gelu", "relu", "linear"], ...] = key(
        "Activation of each input projection of the feed-forward layer; their product goes on."
    )
    logits_via_embedding: bool = key("Tied embeddings: the embedding is the output head too.")
    normalization_layer_epsilon: PositiveFloat = key("Epsilon of RMSNorm.")
    use_qk_norm: bool = key("RMSNorm over the head dim of queries and keys, before RoPE.")
    attention_bias: bool = key("Biases on the projections of queries, keys and values.")
    query_pre_attn_scalar: NonNegativeFloat = key(
        "Attention scores are divided by the root of this; 0: of `head_dim`."
    )
    sliding_window_size: NonNegativeInt = key(
        "Tokens that a query sees, itself included, in the layers that look back only so far: all "
        "of them, every other one of `gemma2`, five of six of `gemma3`. 0: no such limit."
    )
    attn_logits_soft_cap: NonNegativeFloat = key(
        "Attention scores s become cap * tanh(s / cap); 0: they stay."
    )
    final_logits_soft_cap: NonNegativeFloat = key("The same for the logits of the output head.")
    rope_type: Literal["default", "linear", "llama3.1", "yarn"] = key(
        "RoPE frequencies: `default` unscaled, `linear` all divided by one number, `llama3.1` and "
        "`yarn` rescaled by parts of the spectrum."
    )
    rope_max_timescale: PositiveFloat = key("RoPE base (theta).")
    local_rope_max_timescale: float = key(
        "RoPE base, unscaled, of those layers of `gemma2` and `gemma3` that have a sliding "
        "window; -1: as the others."
    )
    rope_linear_scaling_factor: Stretch = key("`linear`: what wavelengths grow by.")
    rope_factor: Stretch = key("`llama3.1` and `yarn`: the factor that long wavelengths grow by.")
    beta_fast: PositiveFloat = key(
        "`yarn`: what turns more often than this in the original length is left alone."
    )
    beta_slow: PositiveFloat = key(
        "`yarn`: what turns less often than this in the original length is scaled fully."
    )
    rope_truncate: bool = key("`yarn`: round these bounds outwards to whole channels.")
    rope_attention_scaling: bool = key(
        "`yarn`: multiply rotated queries and keys by 1 + 0.1 mscale ln(rope_factor) each."
    )
    mscale: NonNegativeFloat = key("`yarn`: the number of this name in that factor.")
    rope_low_freq_factor: PositiveFloat = key(
        "`llama3.1`: wavelengths over original length / this are scaled fully."
    )
    rope_high_freq_factor: PositiveFloat = key(
        "`llama3.1`: wavelengths under original length / this are left alone."
    )
    original_max_position_embeddings: Positive = key(
        "Tokens of context that the model was first trained with; the unit of `llama3.1` and "
        "`yarn` scaling."
    )
    max_position_embeddings: Positive = key(
        "Tokens of context that the model was released for; longer sequences are refused."
    )
    dense_init_scale: PositiveFloat = key(
        "Variance of random kernels times their fan-in (truncated normal)."
    )


class ComputeConfig(Section):
    """How the model is run; no result depends on it beyond rounding."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = key(
        "Type of activations: `auto` is bfloat16 on TPU and GPU, float32 on a CPU."
    )
    weight_dtype: FloatType = key("Type that weights are kept and updated in.")
    matmul_precision: Literal["default", "high", "highest"] = key(
        "Precision of float32 products: `default` may use bfloat16 passes on TPU, TF32 on GPU."
    )
    use_iota_embed: bool = key(
        "Embed tokens, in training, by a product with one-hot rows in the place of a lookup: where "
        "the vocabulary is split, devices sum parts rather than gather the table. The numbers are "
        "the same; the product costs as much as the output head."
    )
    logits_dot_in_fp32: bool = key("Run the output head in float32 whatever `dtype` is.")
    float32_qk_product: bool = key("Take the product of queries and keys in float32.")
    float32_logits: bool = key("Take the softmax of attention in float32.")
    attention: Literal[
        "autoselected", "dot_product", "flash", "cudnn_flash_jax", "cudnn_flash_te"
    ] = key(
        "`dot_product` runs everywhere; `flash` is the kernel kept for TPU (JAX splash) and "
        "GPU (tokamax); `cudnn_flash_jax` and `cudnn_flash_te` are cuDNN's for GPU, "
        "by JAX and by Transformer Engine; `autoselected` is flash on TPU, dot_product elsewhere."
    )
    context_parallel_strategy: Literal["all_gather", "ring"] = key(
        "Where rows are split (context): `all_gather` brings all keys and values of a row to each "
        "device, `ring` passes them round, so that none ever holds them all."
    )
    scan_layers: bool = key(
        "One compiled layer, run in a loop. False unrolls: slower to compile, at times faster."
    )
    fused_qkv: bool = key(
        "Make queries, keys and values by one product, from one kernel that holds each KV head "
        "with its query heads. Steps and checkpoints are the same."
    )
    fused_mlp: bool = key(
        "Make both inputs of a gated feed-forward layer by one product. Steps and checkpoints are "
        "the same."
    )
    remat_policy: Literal[
        "full",
        "minimal",
        "minimal_offloaded",
        "save_qkv_proj",
        "qkv_proj_offloaded",
        "save_out_proj",
        "custom",
        "none",
    ] = key(
        "What the backward pass recomputes. `full`: everything but the input of each layer; "
        "`minimal`: all but the results of products; `save_qkv_proj`, `save_out_proj`: all but "
        "those; `custom`: each tensor by its own key; `none`: nothing. `minimal_offloaded` and "
        "`qkv_proj_offloaded` keep in the host's memory what the names without it keep on the "
        "device."
    )
    query_proj: Tensor = key(
        "`custom`: the queries. `remat`: computed again, `device`: kept, `offload`: kept in the "
        "host's memory."
    )
    key_proj: Tensor = key("`custom`: the keys.")
    value_proj: Tensor = key("`custom`: the values.")
    attention_out: Tensor = key("`custom`: what attention returns, before its projection.")
    out_proj: Tensor = key("`custom`: the output projection of attention.")
    mlpwi_0: Tensor = key("`custom`: the gate projection of the feed-forward layer.")
    mlpwi_1: Tensor = key("`custom`: the other input projection.")
    mlpwo: Tensor = key("`custom`: the output projection of the feed-forward layer.")
    num_vocab_tiling: Positive = key(
        "Tiles of the vocabulary in the cross entropy; with more than one, the logits of all "
        "tokens never exist at once. A divisor of `vocab_size`."
    )


class MeshConfig(Section):
    """How devices form a mesh and which logical axis each mesh axis splits."""

    ici_data_parallelism: Count = key("Within a slice: copies of everything, batch split.")
    ici_pipeline_parallelism: Count = key("Within a slice: pipeline stages (axis `stage`).")
    ici_fsdp_parallelism: Count = key("Within a slice: batch and weights split.")
    ici_context_parallelism: Count = key("Within a slice: sequence split.")
    ici_expert_parallelism: Count = key("Within a slice: experts split.")
    ici_tensor_parallelism: Count = key("Within a slice: heads and feed-forward split.")
    ici_tensor_sequence_parallelism: Count = key(
        "Within a slice: as tensor, norms and residual split by length."
    )
    enable_dp_attention: bool = key(
        "Attention data parallelism, for serving: the devices of `ici_tensor_parallelism` split "
        "the requests where there are fewer key and value heads than devices, so that none is "
        "cached twice."
    )
    ici_attn_dp_parallelism: Count = key(
        "Groups of those devices, each with requests of its own in attention. -1: with "
        "`enable_dp_attention` the fewest that cache no head twice; 1: off."
    )
    attn_dp_weights: Literal["auto", "replicated", "sharded"] = key(
        "The projections of attention: `replicated` keeps a copy in each group, `sharded` splits "
        "them over all groups and passes the heads of new tokens round, `auto` is sharded where "
        "the query heads divide."
    )
    dcn_data_parallelism: Count = key("Across slices: copies of everything, batch split.")
    dcn_pipeline_parallelism: Count = key("Across slices: pipeline stages.")
    dcn_fsdp_parallelism: Count = key("Across slices: batch and weights split.")
    dcn_context_parallelism: Count = key("Across slices: sequence split.")
    dcn_expert_parallelism: Count = key("Across slices: experts split.")
    dcn_tensor_parallelism: Count = key("Across slices: heads and feed-forward split.")
    dcn_tensor_sequence_parallelism: Count = key(
        "Across slices: as tensor, norms and residual split by length."
    )
    context_parallel_load_balance: bool = key(
        "Where rows are split (context): give each device an early and a late part of every row, "
        "so that all have the same causal work. False: a part each, in order."
    )
    num_slices: Count = key(
        "Slices (groups of devices joined by the data-center network). -1: what the devices say, "
        "else the product of the dcn degrees."
    )
    allow_split_physical_axes: bool = key(
        "Let one physical axis of a TPU topology serve several mesh axes."
    )
    mesh_axes: tuple[str, ...] = key("Order of the mesh axes, the slowest-varying first.")
    logical_axis_rules: Rules = key(
        "For each logical axis the mesh axes that split it, major first; [] is replicated. Given "
        "as a mapping; a later source replaces single rules: "
        "`logical_axis_rules='{mlp: [tensor, fsdp], norm: []}'`."
    )
    shard_optimizer_over_data: bool = key(
        "Split the optimizer's state over the data axis too, each array by its largest dim that "
        "divides. No number changes."
    )
    custom_mesh_and_rule: str = key(
        "YAML file whose `mesh_axes` and `logical_axis_rules` replace those of base.yml whole."
    )


class Config(Section):
    """All sections; only entry points hold the whole."""

    run: RunConfig
    model: ModelConfig
    compute: ComputeConfig
    mesh: MeshConfig
    pipeline: PipelineConfig
    data: DataConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    checkpoint: CheckpointConfig
    metrics: MetricsConfig
    profile: ProfileConfig
    decode: DecodeConfig
    vllm: VllmConfig
    serve: ServeConfig
    plan: PlanConfig

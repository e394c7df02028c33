"""Every key a user can set: its type, its unit and its meaning, declared once.

The user sees flat keys (`base_emb_dim=64`), code sees frozen sections (`config.model.emb_dim`).
Defaults live in `configs/base.yml` alone; a test holds the two equal.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from pydantic import PositiveInt as Positive

type Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
type Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
type Count = Annotated[int, Field(ge=-1)]
type Degree = Annotated[int, Field(ge=-1)]
type Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
type Tensor = Literal["remat", "device", "offload"]
type FloatType = Literal["float32", "bfloat16", "float16"]
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


def key(doc: str, *, name: str | None = None) -> Any:
    """Declares a key; `name` is what the user types where it differs from the field."""
    return Field(alias=name, description=doc)


class Section(BaseModel):
    """A frozen group of keys; hashable, so that it can be a static argument of `jax.jit`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_by_name=True,
        protected_namespaces=(),
    )


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
    rope_linear_scaling_factor: PositiveFloat = key("`linear`: what wavelengths grow by.")
    rope_factor: PositiveFloat = key(
        "`llama3.1` and `yarn`: the factor that long wavelengths grow by."
    )
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

    ici_data_parallelism: Degree = key("Within a slice: copies of everything, batch split.")
    ici_pipeline_parallelism: Degree = key("Within a slice: pipeline stages (axis `stage`).")
    ici_fsdp_parallelism: Degree = key("Within a slice: batch and weights split.")
    ici_context_parallelism: Degree = key("Within a slice: sequence split.")
    ici_expert_parallelism: Degree = key("Within a slice: experts split.")
    ici_tensor_parallelism: Degree = key("Within a slice: heads and feed-forward split.")
    ici_tensor_sequence_parallelism: Degree = key(
        "Within a slice: as tensor, norms and residual split by length."
    )
    dcn_data_parallelism: Degree = key("Across slices: copies of everything, batch split.")
    dcn_pipeline_parallelism: Degree = key("Across slices: pipeline stages.")
    dcn_fsdp_parallelism: Degree = key("Across slices: batch and weights split.")
    dcn_context_parallelism: Degree = key("Across slices: sequence split.")
    dcn_expert_parallelism: Degree = key("Across slices: experts split.")
    dcn_tensor_parallelism: Degree = key("Across slices: heads and feed-forward split.")
    dcn_tensor_sequence_parallelism: Degree = key(
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


class DataConfig(Section):
    """Where tokens come from and how they become batches."""

    dataset_type: Literal["synthetic", "grain", "hf"] = key(
        "`synthetic`: random tokens, endless; `grain`: files; `hf`: a data set of Hugging Face's "
        "package datasets, in a local folder or on the hub (extra `hf`)."
    )
    grain_train_files: str = key(
        "Files to train on: paths and globs, separated by commas. With weights, by documents: "
        "`a*.jsonl,0.3;b*.jsonl,0.7`."
    )
    grain_train_mixture_config_path: str = key(
        "YAML file that says the same: for each name a `path` and a `weight`."
    )
    grain_eval_files: str = key("Files to evaluate on: paths and globs, separated by commas.")
    grain_file_type: Literal["auto", "jsonl", "txt", "parquet", "arrayrecord"] = key(
        "Format of the files; `auto` goes by the suffix."
    )
    hf_path: str = key(
        "Data set of the hub, folder of a data set, or format (`json`, `parquet`) of `hf_*_files`."
    )
    hf_name: str = key("Configuration of the data set, where it has several.")
    hf_data_dir: str = key("Folder inside of the data set.")
    hf_streaming: bool = key(
        "Read the data set as it is needed, from front to back, without a copy on disk."
    )
    hf_train_files: str = key("Files to train on, in place of the split's; commas between.")
    hf_eval_files: str = key("Files to evaluate on, likewise.")
    train_split: str = key("Split of the data set to train on.")
    hf_eval_split: str = key("Split of the data set to evaluate on.")
    train_data_columns: tuple[str, ...] = key(
        "Columns whose texts are joined to one document; with `use_sft`, [messages] or "
        "[prompt, completion]."
    )
    eval_data_columns: tuple[str, ...] = key("The same, for evaluation.")
    grain_worker_count: NonNegativeInt = key("Processes that read and tokenize; 0: in a thread.")
    grain_per_worker_buffer_size: Positive = key(
        "Groups of documents that each worker keeps ready."
    )
    grain_worker_count_eval: NonNegativeInt = key("The same, for evaluation.")
    grain_prefetch_buffer_size: Positive = key("Batches kept ready on the devices.")
    tokenizer_type: Literal["byte", "huggingface", "sentencepiece"] = key(
        "`byte`: UTF-8 bytes, vocabulary 256, BOS 254, EOS 255, pad 253 (bytes that UTF-8 never "
        "uses); `huggingface`: a tokenizer.json; `sentencepiece`: a tokenizer.model."
    )
    tokenizer_path: str = key("Folder of the tokenizer, or that file of it.")
    use_sft: bool = key(
        "Train on chats: loss on what the assistant says, or on completions, alone."
    )
    sft_train_on_completion_only: bool = key("False: loss on all that chats say.")
    chat_template: str = key(
        "Jinja file that renders messages; empty: the tokenizer's chat template."
    )
    add_bos: bool = key("Put BOS before each document.")
    add_eos: bool = key("Put EOS after each document.")
    packing: bool = key(
        "Fill rows with several documents; a long document goes on in the next row. False: each "
        "row holds (a piece of) one document."
    )
    grain_packing_type: Literal["concat_then_split", "first_fit"] = key(
        "`concat_then_split` leaves no padding; `first_fit` keeps a document that fits in a row "
        "whole. Neither loses a token."
    )
    max_segments_per_seq: Count = key("Documents in one row at most; -1: no limit.")
    max_target_length: Positive = key("Tokens of a row.")
    per_device_batch_size: PositiveFloat = key(
        "Rows a device and forward pass; a fraction where one row is split over devices. The "
        "global batch is this * devices * gradient_accumulation_steps."
    )
    eval_per_device_batch_size: NonNegativeFloat = key(
        "The same, for evaluation; 0: as in training."
    )
    enable_data_shuffling: bool = key("Read documents in random order, another one each epoch.")
    data_shuffle_seed: Seed = key("Seed of that order.")
    grain_shuffle_buffer_size: Positive = key(
        "`hf_streaming`: documents that are shuffled among themselves; others keep their order."
    )
    num_epoch: Count = key(
        "Times to read the data; -1: without end. With weights, of the source that ends first."
    )


class OptimizerConfig(Section):
    """How gradients become updates."""

    opt_type: Literal["adamw", "adafactor", "muon", "lion", "sgd"] = key(
        "Optimizer. `muon` is for the matrices within layers; embeddings, head, norms and biases "
        "get AdamW then."
    )
    learning_rate: NonNegativeFloat = key("Highest learning rate, reached after warm-up.")
    lr_schedule_type: Literal["cosine", "wsd", "constant"] = key(
        "After warm-up: `cosine` falls to the end, `wsd` stays and falls at last, `constant` stays."
    )
    warmup_steps_fraction: Fraction = key(
        "Part of the schedule that is linear warm-up: step n of w gets n / w of the rate."
    )
    learning_rate_final_fraction: Fraction = key(
        "Rate at the end of `cosine` and `wsd` / highest rate."
    )
    wsd_decay_steps_fraction: Fraction = key("`wsd`: part of the schedule, the last, that falls.")
    wsd_decay_style: Literal["linear", "cosine"] = key("`wsd`: how it falls.")
    learning_rate_schedule_steps: Count = key("Steps of the schedule; -1: `steps`.")
    adam_b1: Probability = key("Decay of the first moment.")
    adam_b2: Probability = key("Decay of the second moment.")
    adam_eps: NonNegativeFloat = key("Added to the root of the second moment.")
    adam_eps_root: NonNegativeFloat = key("Added under the root of the second moment.")
    adam_weight_decay: NonNegativeFloat = key(
        "Decoupled weight decay, times the learning rate; norms and biases are left out."
    )
    muon_beta: Probability = key("Muon: decay of the momentum.")
    muon_weight_decay: NonNegativeFloat = key("Muon: as `adam_weight_decay`, of its matrices.")
    muon_consistent_rms: NonNegativeFloat = key(
        "Muon: root mean square that every update is given; 0.2 makes a learning rate of AdamW's "
        "fit. 0: the spectral norm of an update is sqrt(max(1, fan-out / fan-in))."
    )
    lion_b1: Probability = key("Lion: part of the momentum in an update.")
    lion_b2: Probability = key("Lion: decay of the momentum.")
    lion_weight_decay: NonNegativeFloat = key("Lion: as `adam_weight_decay`.")
    sgd_momentum: Probability = key("SGD: decay of the momentum; 0: none, and no state.")
    sgd_weight_decay: NonNegativeFloat = key("SGD: as `adam_weight_decay`.")
    adafactor_weight_decay: NonNegativeFloat = key("Adafactor: as `adam_weight_decay`.")
    mu_dtype: Literal["", "float32", "bfloat16"] = key(
        "Type of the first moment or momentum; empty: weights'."
    )
    grad_dtype: Literal["float32", "bfloat16"] = key(
        "Type of the gradients of each forward and backward pass; their sum is float32."
    )
    gradient_clipping_threshold: NonNegativeFloat = key(
        "Largest global norm of the gradient; 0: no clipping. The log shows the norm before."
    )
    skip_step_on_spikes: bool = key(
        "Leave weights and optimizer as they are where loss or gradient norm is far above recent "
        "ones."
    )
    skip_step_interval: Annotated[int, Field(ge=2)] = key(
        "Steps whose mean and deviation count; none is skipped before half of them are done."
    )
    skip_step_scaling_factor: PositiveFloat = key(
        "Standard deviations above the mean from which on a step is skipped."
    )
    trainable_parameters_mask: tuple[str, ...] = key(
        "Train only weights in whose name one of these regular expressions is found; empty: all."
    )


class TrainingConfig(Section):
    """The loop."""

    steps: Positive = key("Steps in all, those of a resumed run included.")
    gradient_accumulation_steps: Positive = key("Forward and backward passes an update.")
    z_loss_multiplier: NonNegativeFloat = key("Weight of mean(logsumexp(logits)^2) in the loss.")
    dropout_rate: Probability = key("Dropout on embeddings and on each branch of a layer.")
    enable_dropout: bool = key("False turns dropout off whatever its rate.")
    init_weights_seed: Seed = key("Seed of random weights and of dropout.")
    eval_interval: Count = key("Steps between evaluations; -1: none, 0: at the end only.")
    eval_steps: Count = key("Batches of an evaluation; -1: all of the data.")
    abort_on_nan_loss: bool = key("Stop with exit code 1 when the loss is NaN.")
    abort_on_inf_loss: bool = key("Stop with exit code 1 when the loss is infinite.")


class CheckpointConfig(Section):
    """What is kept of a run and what it starts from."""

    enable_checkpointing: bool = key("Write checkpoints and resume from them.")
    async_checkpointing: bool = key("Write while training goes on.")
    checkpoint_period: Positive = key("Steps between checkpoints.")
    max_num_checkpoints_to_keep: Count = key("Newest checkpoints to keep; -1: all.")
    checkpoint_keep_period: Count = key(
        "Checkpoints of steps that are a multiple of it are kept for good; -1: none. A multiple of "
        "`checkpoint_period`."
    )
    num_best_checkpoints_to_keep: NonNegativeInt = key(
        "Checkpoints of lowest evaluation loss to keep beside the newest; 0: none."
    )
    local_checkpoint_directory: str = key(
        "Folder on a faster disk for checkpoints between the others; a run uses "
        "`<local_checkpoint_directory>/<run_name>`. All processes must see it. Empty: none."
    )
    local_checkpoint_period: NonNegativeInt = key(
        "Steps between checkpoints in `local_checkpoint_directory`, of which the newest is kept."
    )
    save_checkpoint_on_completion: bool = key("Write one after the last step.")
    restore_step: Count = key(
        "Step to resume from; -1: the newest. Later ones are set aside, not deleted."
    )
    load_parameters_path: str = key(
        "Checkpoint (a step, or a run's `checkpoints`: its newest) or Hugging Face folder whose "
        "weights a new run starts from."
    )
    load_full_state_path: str = key(
        "Checkpoint whose weights, optimizer, step and place in the data a new run starts from."
    )


class MetricsConfig(Section):
    """What is reported, and where."""

    log_period: Positive = key("Steps between step lines; JSONL and TensorBoard get every step.")
    enable_tensorboard: bool = key("Write TensorBoard files to `<run>/tensorboard`.")
    metrics_file: str = key("JSONL file that gets one line a step, in full precision.")


class ProfileConfig(Section):
    """Traces of single steps."""

    profiler: Literal["", "xplane"] = key(
        "`xplane`: trace some steps, into `<run>/tensorboard`, for xprof. Empty: none."
    )
    skip_first_n_steps_for_profiler: NonNegativeInt = key(
        "Steps of a start before the first that is traced."
    )
    profiler_steps: Positive = key("Steps to trace.")


class DecodeConfig(Section):
    """`maxtext.decode`: what to write, how to choose tokens, and what the engine holds at once."""

    prompt: str = key("Text to go on from, to the letter; `-` reads it from standard input.")
    prompts_file: str = key(
        "File of prompts in place of `prompt`: a line each, or `.jsonl` with `prompt` "
        "or `messages`, beside them `max_new_tokens`, `seed`, `stop` for this one. One line of "
        "JSON each is printed."
    )
    use_chat_template: bool = key(
        "Take the prompt as what a user says in a chat, and write the answer."
    )
    max_new_tokens: Positive = key("Tokens to generate at most.")
    decode_sampling_strategy: Literal["greedy", "weighted", "nucleus", "topk", "composite"] = key(
        "`greedy`: the likeliest; `weighted`: by probability; `nucleus`: among the likeliest that "
        "hold `decode_sampling_nucleus_p`; `topk`: among the `decode_sampling_top_k` likeliest; "
        "`composite`: the last two one after the other."
    )
    decode_sampling_temperature: PositiveFloat = key("Logits are divided by it before sampling.")
    decode_sampling_nucleus_p: Annotated[float, Field(gt=0.0, le=1.0)] = key(
        "For `nucleus` and `composite`."
    )
    decode_sampling_top_k: Positive = key("For `topk` and `composite`.")
    decode_sampling_min_p: Fraction = key(
        "Only tokens at least this part as likely as the likeliest; 0: all. Not for `greedy`."
    )
    decode_repetition_penalty: PositiveFloat = key(
        "Makes tokens that occurred less likely; 1: no penalty."
    )
    decode_seed: Seed = key("Seed of sampling; prompts of a file count up from it.")
    decode_eos_ids: tuple[str, ...] = key(
        "Ids of the tokens that end the text; []: the tokenizer's EOS."
    )
    ignore_eos: bool = key("Go on after tokens that end the text.")
    stop_strings: tuple[str, ...] = key("Texts that end the text; they are not printed.")
    decode_logprobs: Annotated[int, Field(ge=-1, le=20)] = key(
        "Log probabilities that `prompts_file` prints for each token: its own, and so many of the "
        "likeliest. -1: none."
    )
    decode_dtype: Literal["auto", "float32", "bfloat16", "float16"] = key(
        "Type of weights and activations in decoding; `auto` is `dtype`."
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = key(
        "Type of cached keys and values; `auto` is that of activations. int8 keeps a scale for "
        "each token and head."
    )
    page_size: Positive = key("Tokens of a page of the cache.")
    num_pages: Count = key(
        "Pages of the cache, of all devices that split requests together. -1: what "
        "`max_num_seqs` of `max_target_length` need, as far as `kv_cache_memory_fraction` allows."
    )
    kv_cache_memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = key(
        "Part of the memory that is free once weights are loaded which the cache may take."
    )
    max_num_seqs: Positive = key("Requests that run at once; more wait.")
    max_num_batched_tokens: Positive = key(
        "Tokens of a step for each device that splits requests; longer prompts take several."
    )
    enable_prefix_caching: bool = key("Compute what prompts begin with in common once.")


class ServeConfig(Section):
    """`maxtext.serve`: where it listens and what it takes on."""

    serve_host: str = key("Address to listen on; `0.0.0.0` is all of this machine's.")
    serve_port: Annotated[int, Field(ge=0, le=65535)] = key("Port to listen on; 0: a free one.")
    served_model_name: str = key(
        "What clients call the model; empty: `run_name`, or the last part of "
        "`load_parameters_path`."
    )
    serve_max_body_bytes: Positive = key("Bytes of a request at most.")
    serve_max_tokens: Annotated[int, Field(ge=-1)] = key(
        "New tokens of an answer at most; -1: as many as `max_target_length` has room for."
    )
    serve_max_waiting: NonNegativeInt = key(
        "Requests that may wait while `max_num_seqs` run; more are refused with status 429."
    )
    serve_timeout_seconds: PositiveFloat = key(
        "Seconds from a request's arrival to the end of its answer at most."
    )
    serve_warm_up: bool = key(
        "Compile all shapes of steps before the first request, rather than when they come up."
    )


class Config(Section):
    """All sections; only entry points hold the whole."""

    run: RunConfig
    model: ModelConfig
    compute: ComputeConfig
    mesh: MeshConfig
    data: DataConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    checkpoint: CheckpointConfig
    metrics: MetricsConfig
    profile: ProfileConfig
    decode: DecodeConfig
    serve: ServeConfig

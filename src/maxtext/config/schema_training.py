"""The keys of training: data, optimizer, loop, checkpoints, metrics."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from pydantic import PositiveInt as Positive

from maxtext.config.section import Count, Fraction, Probability, Section, Seed, key


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

    compile_only: bool = key(
        "Compile the training step for these devices, report its memory, FLOPs and collectives, "
        "write both to `<run>/compiled`, then exit: no weights, no data."
    )
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

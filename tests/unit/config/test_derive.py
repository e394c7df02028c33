"""Settings that exclude each other, each with what would work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.load import load
from maxtext.config.numbers import divisors

type Problems = Callable[..., tuple[Problem, ...]]

CLASHES = [
    ("base_num_kv_heads=3", "query heads must be a multiple", "may be 1, 2, 4, 8"),
    ("head_dim=5", "must be even: RoPE turns pairs", "use 4 or 6"),
    ("head_dim=1", "must be even", "use 2"),
    ("num_vocab_tiling=3", "the vocabulary must be a multiple", "may be 1, 2, 4, 8, 16, 32"),
    ("vocab_size=255", "needs a vocabulary of 256 or more", "vocab_size=256"),
    ("max_target_length=131073", "rows are longer", "max_target_length=131072"),
    ("mlp_activations=[]", "must have one entry, or two", "[silu, linear]"),
    ("mlp_activations=silu,linear,linear", "must have one entry, or two", "[silu, linear]"),
    ("rope_type=llama3.1 rope_high_freq_factor=1", "must be larger than", "4.0 and 1.0"),
    ("rope_type=yarn beta_slow=32", "beta_fast must be larger", "32.0 and 1.0"),
    ("rope_type=linear", "changes nothing with a factor of 1", "rope_linear_scaling_factor"),
    ("rope_factor=2", "counts with rope_type=llama3.1 or yarn only", "set that rope_type"),
    ("mscale=2", "counts with rope_type=yarn only", "set that rope_type"),
    ("decoder_block=gemma3", "a sliding window, whose size is missing", "512 or 1024"),
    ("local_rope_max_timescale=0", "must be -1 or above 0", "10000.0"),
    ("local_rope_max_timescale=1e4", "would be ignored: llama2 has one", "use rope_max_timescale"),
    ("attention=cudnn_flash_jax head_dim=12", "a multiple of 8, at most 256", "dot_product"),
    ("attention=cudnn_flash_jax head_dim=264", "a multiple of 8, at most 256", "dot_product"),
    ("attention=cudnn_flash_jax max_target_length=33", "an even length", "dot_product"),
    ("attention=cudnn_flash_te attn_logits_soft_cap=50", "cuDNN has no soft cap", "dot_product"),
    ("attention=cudnn_flash_te", "how many documents a row holds", "max_segments_per_seq"),
    ("run_name=a/b", "must be the name of one folder", "without a slash"),
    ("run_name=.", "must be the name of one folder", "without a slash"),
    ("run_name=..", "must be the name of one folder", "without a slash"),
    ("run_name=a\tb", "must not hold line breaks", ""),
    ("ici_data_parallelism=-1", "only one ici degree can be -1", "ici_fsdp_parallelism=1"),
    ("dcn_fsdp_parallelism=-1", "only one dcn degree can be -1", "dcn_data_parallelism=1"),
    ("ici_tensor_parallelism=0", "must be -1 or at least 1", "1 leaves the axis unused"),
    ("ici_pipeline_parallelism=-1", "only one ici degree can be -1", "ici_fsdp_parallelism=1"),
    ("ici_pipeline_parallelism=0", "must be -1 or at least 1", "1 leaves the axis unused"),
    (
        "ici_pipeline_parallelism=2 base_num_decoder_layers=5",
        "5 layers do not divide over 2 stages x 1 layers",
        "pipeline_parallel_layers=4 runs the others outside",
    ),
    (
        "ici_pipeline_parallelism=2 dcn_pipeline_parallelism=2 num_layers_per_pipeline_stage=3",
        "8 layers do not divide over 4 stages x 3 layers",
        "num_layers_per_pipeline_stage may be 1, 2",
    ),
    (
        "ici_pipeline_parallelism=4 base_num_decoder_layers=3",
        "3 layers do not divide over 4 stages",
        "use fewer stages",
    ),
    (
        "ici_pipeline_parallelism=4 pipeline_parallel_layers=12",
        "the model has 8 layers",
        "use pipeline_parallel_layers=8",
    ),
    (
        "ici_pipeline_parallelism=2 num_pipeline_repeats=2",
        "2 stages x 1 layers x 2 repeats are 4 layers, not 8",
        "use num_pipeline_repeats=4, or pipeline_parallel_layers=4",
    ),
    (
        "ici_pipeline_parallelism=4 num_pipeline_microbatches=6",
        "must be a multiple of the 4 stages and at least 4",
        "use 4 or 8",
    ),
    (
        "ici_pipeline_parallelism=4 num_pipeline_microbatches=2",
        "must be a multiple of the 4 stages and at least 4",
        "use 4 or 8",
    ),
    (
        "ici_pipeline_parallelism=4 num_pipeline_microbatches=4 "
        "pipeline_delay_activation_forwarding=true",
        "must be a multiple of the 4 stages and at least 8",
        "use 8 or 12",
    ),
    ("num_pipeline_microbatches=0", "must be -1 or at least 1", "-1 takes the fewest"),
    ("num_pipeline_microbatches=4", "there are no pipeline stages", "ici_pipeline_parallelism"),
    ("scan_pipeline_iterations=false", "there are no pipeline stages", "or leave it out"),
    (
        "ici_pipeline_parallelism=2 remat_policy=none set_remat_policy_on_layers_per_stage=true",
        "nothing is computed again",
        "leave it out",
    ),
    ("ici_expert_parallelism=2", "expert parallelism", "ici_expert_parallelism=1"),
    ("num_slices=0", "must be -1 or at least 1", "-1 leaves it to the devices"),
    ("num_slices=3 dcn_fsdp_parallelism=2", "multiply to 2; they must divide", "num_slices=2"),
    ("num_slices=4 dcn_data_parallelism=2", "multiply to 2; they must multiply", "num_slices=2"),
    ("mesh_axes=data,fsdp,tensr", "there is no mesh axis 'tensr'", "did you mean tensor?"),
    ("mesh_axes=data,data", "names 'data' twice", "keep one"),
    ("mesh_axes=data,tensor", "mesh_axes has no axis 'fsdp'", "ici_fsdp_parallelism=1"),
    ("mesh_axes=data,tensor", "rules name stage, fsdp, tensor_sequence", "custom_mesh_and_rule"),
    (
        'logical_axis_rules={"mlp":["tensr"]}',
        "there is no mesh axis 'tensr'",
        "did you mean tensor?",
    ),
    ("dtype=float16", "too small for its range", "dtype=bfloat16"),
    ("weight_dtype=float16", "too small for its range", "weight_dtype=bfloat16"),
    ("opt_type=lion adam_b1=0.8", "this optimizer does not use it", "use opt_type=adamw"),
    ("muon_beta=0.8", "would be ignored", "use opt_type=muon"),
    ("opt_type=adafactor mu_dtype=bfloat16", "would be ignored", "use opt_type=adamw"),
    ("opt_type=sgd mu_dtype=bfloat16", "SGD without momentum keeps none", "sgd_momentum=0.9"),
    ("wsd_decay_style=cosine", "the schedule is not wsd", "lr_schedule_type=wsd"),
    ("skip_step_interval=64", "no step is skipped", "skip_step_on_spikes=true"),
    ("trainable_parameters_mask='a(b'", "'a(b' is not a regular expression: missing )", ""),
    (
        "lr_schedule_type=wsd steps=100 wsd_decay_steps_fraction=0.95",
        "10 steps of warm-up and 95 of decay are more than 100",
        "smaller fractions",
    ),
    (
        "lr_schedule_type=wsd steps=9 learning_rate_schedule_steps=5 "
        "learning_rate_final_fraction=0",
        "the last 4 steps would train at rate 0",
        "steps=5",
    ),
    ("query_proj=device", "would be ignored", "remat_policy=custom"),
    ("dataset_type=grain", "needs grain_train_files, which is empty", "grain_train_files='data/"),
    ("grain_train_files=a.jsonl", "would be ignored: the data are synthetic", "dataset_type=grain"),
    ("grain_eval_files=a.jsonl", "would be ignored: the data are synthetic", "dataset_type=grain"),
    ("tokenizer_path=x", "would be ignored: the tokenizer is made of", "tokenizer_type=huggingfac"),
    ("train_data_columns=[]", "must be one or more columns", "text"),
    ("eval_data_columns=a,a", "none of them twice", "text"),
    ("eval_interval=5", "an evaluation on synthetic data would never end", "eval_steps=10"),
    (
        "dataset_type=grain grain_train_files=a grain_eval_files=a eval_interval=5 use_sft=true "
        "eval_data_columns=a,b,c",
        "must be a column of messages",
        "eval_data_columns=[messages] or [prompt,completion]",
    ),
    ("serve_max_tokens=0", "must be -1 or at least 1", "max_target_length"),
    ("max_segments_per_seq=0", "must be -1 or at least 1", "-1 sets no limit"),
    ("num_epoch=0", "must be -1 or at least 1", "-1 goes on"),
    ("max_num_checkpoints_to_keep=0", "must be -1 or at least 1", "enable_checkpointing=false"),
    ("eval_steps=0", "must be -1 or at least 1", "eval_interval=-1"),
    ("learning_rate_schedule_steps=0", "must be -1 or at least 1", "-1 takes steps"),
    ("warmup_steps_fraction=1", "warm-up takes all steps", "lr_schedule_type=constant"),
    (
        "learning_rate_schedule_steps=10 learning_rate_final_fraction=0",
        "the last 990 steps would train at rate 0",
        "steps=10",
    ),
    ("load_parameters_path=. load_full_state_path=.", "a run starts from one", "keep one"),
    ("restore_step=5", "run_name is empty", "give the run_name"),
    ("restore_step=5 run_name=a enable_checkpointing=false", "nothing is resumed", "=true"),
]


@pytest.mark.parametrize(("arguments", "message", "hint"), CLASHES)
def test_a_clash_says_what_is_wrong_and_what_would_work(
    arguments: str, message: str, hint: str, problems: Problems
) -> None:
    argv = arguments.split(" ")
    found = [problem for problem in problems(*argv) if message in problem.message]
    assert found
    assert all(problem.origin is not None and problem.origin.by_user for problem in found)
    assert any(hint in problem.hint for problem in found)
    assert all(str(problem).count("\n") <= 1 for problem in found)


@pytest.mark.parametrize(
    "arguments",
    [
        "base_num_kv_heads=8",
        "base_num_kv_heads=1",
        "base_num_query_heads=12",
        "num_vocab_tiling=4",
        "mlp_activations=relu",
        "rope_type=yarn beta_fast=16",
        "rope_type=default rope_factor=4",
        "local_rope_max_timescale=-1",
        "rope_type=linear rope_linear_scaling_factor=2",
        "attention=cudnn_flash_te packing=false",
        "attention=cudnn_flash_te max_segments_per_seq=8",
        "decoder_block=gemma2 sliding_window_size=16",
        "decoder_block=gemma3 sliding_window_size=16 local_rope_max_timescale=1e4",
        "max_target_length=131076 override_model_config=true",
        "run_name=...",
        "run_name=2025_01_02",
        "ici_data_parallelism=-1 ici_fsdp_parallelism=2",
        "ici_context_parallelism=2 context_parallel_strategy=ring",
        "ici_tensor_sequence_parallelism=2",
        "num_slices=4 dcn_fsdp_parallelism=2",
        "num_slices=2 dcn_data_parallelism=2",
        "mesh_axes=data,tensor_sequence,tensor,expert,context,fsdp,stage",
        "query_proj=device remat_policy=custom",
        "dataset_type=synthetic grain_train_files=a.jsonl",
        "tokenizer_type=byte tokenizer_path=x",
        "eval_interval=5 eval_steps=2",
        "warmup_steps_fraction=1 lr_schedule_type=constant",
        "steps=1 warmup_steps_fraction=0.9",
        "learning_rate_schedule_steps=10",
        "learning_rate_schedule_steps=5000 learning_rate_final_fraction=0",
        "restore_step=0 run_name=a",
        "learning_rate=0 steps=1",
    ],
)
def test_what_goes_together_is_accepted(arguments: str) -> None:
    load(arguments.split(" "), {})


def test_a_clash_names_every_setting_and_its_origin(problems: Problems) -> None:
    (problem,) = problems("base_num_query_heads=9")
    assert str(problem).startswith(
        "base_num_query_heads=9 (command line) with base_num_kv_heads=2 (configs/base.yml:"
    )


@pytest.mark.parametrize("number", [1, 2, 12, 36, 97, 128256])
def test_divisors_divide(number: int) -> None:
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


def test_a_file_of_prompts_takes_the_place_of_a_prompt_that_is_empty(folder: Path) -> None:
    (folder / "run.yml").write_text("prompt: a\n")
    (folder / "b.txt").write_text("b\n")
    stored = folder / "output" / "r" / "checkpoints" / "5" / "config" / "metadata"
    stored.parent.mkdir(parents=True)
    stored.write_text("{}")
    argv = ["run.yml", "prompt=", "prompts_file=b.txt", "run_name=r"]
    decode = load(argv, {}, model_from_checkpoint=True).config.decode
    assert (decode.prompt, decode.prompts_file) == ("", "b.txt")
    with pytest.raises(ConfigError, match=r"prompt=a \(run.yml:1\) with prompts_file=b.txt"):
        load(["run.yml", *argv[2:]], {}, model_from_checkpoint=True)

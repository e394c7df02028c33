"""What users type wrong in training: one clear error each, and nothing is written.

A row is a command line, the environment and files it needs, and what the error has to say. Rows
about data and checkpoints belong here too; those of decoding, serving and conversion lie beside.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bad_input import Bad, assert_one_clear_error, assert_refused, make
from maxtext import train

DATA = {"a.jsonl": '{"text": "a"}\n'}

BAD = {
    # names
    "a misspelt key": Bad("learning_rat=1", ("learning_rat=1", "did you mean learning_rate?")),
    "dashes in a name": Bad("--run-name x", ("run-name=x", "did you mean run_name?")),
    "a key of upstream": Bad("hardware=cpu", ("hardware=cpu", "JAX_PLATFORMS")),
    "another key of upstream": Bad("sparse_matmul=true", ("upstream MaxText", "does not have")),
    "a key of another project": Bad("lr=1e-4", ("lr=1e-4", "use learning_rate")),
    "a misspelt variable": Bad(
        "steps=5", ("M_LEARNING_RAT=1", "M_LEARNING_RATE"), environ={"M_LEARNING_RAT": "1"}
    ),
    "a key twice": Bad("steps=5 steps=6", ("steps=6", "given twice", "'5'")),
    "a key here and in the environment": Bad(
        "steps=5", ("steps=5", "M_STEPS", "keep one"), environ={"M_STEPS": "6"}
    ),
    "a key twice in a file": Bad(
        "run.yml", ("steps (run.yml:2)", "line 1"), files={"run.yml": "steps: 5\nsteps: 6\n"}
    ),
    "a key without a value": Bad("--steps", ("--steps", "write steps=VALUE")),
    "a word": Bad("log_period=1 steps", ("steps", "is not key=value")),
    # files
    "a config that is not there": Bad("gone.yml", ("gone.yml", "no such file")),
    "a config that is no YAML": Bad(
        "run.yml", ("run.yml:1", "not valid YAML"), files={"run.yml": "prompt: a: b\n"}
    ),
    "a config that is a list": Bad("run.yml", ("must be a mapping",), files={"run.yml": "- a\n"}),
    "an empty config": Bad("run.yml", ("run.yml: holds no keys",), files={"run.yml": ""}),
    "a base that is not there": Bad(
        "run.yml", ("base_config=gone.yml (run.yml:1)",), files={"run.yml": "base_config: gone.yml"}
    ),
    "a model that is not there": Bad("model_name=llama3.1-8B-it", ("did you mean llama3.1-8b?",)),
    # values
    "a word for a number": Bad("learning_rate=fast", ("must be a number, at least 0",)),
    "nan": Bad("learning_rate=nan", ("learning_rate=nan", "must be a number")),
    "octal": Bad("steps=0010", ("steps=0010", "steps=10")),
    "a float for a whole number": Bad("steps=1e3", ("steps=1e3", "write steps=1000")),
    "yes for true": Bad("packing=yes", ("must be true or false", "packing=true")),
    "none for a number": Bad("steps=None", ("must be a whole number",)),
    "an unknown choice": Bad("dtype=bf16", ("one of auto, float32, bfloat16, float16",)),
    "a negative number": Bad("steps=-5", ("steps=-5", "at least 1")),
    "a fraction above 1": Bad("warmup_steps_fraction=2", ("at most 1",)),
    "a number that no device can hold": Bad("learning_rate=1e300", ("over 3.4e+38",)),
    "a size that no device can count to": Bad("vocab_size=4294967295", ("over 2147483647",)),
    "no batch to evaluate": Bad("eval_interval=5 eval_steps=0", ("-1 takes all of the data",)),
    "a bad rule": Bad('logical_axis_rules={"mlp":["tensr"]}', ("'tensr'", "mean tensor?")),
    "a rule of no axis": Bad('logical_axis_rules={"mpl":[]}', ("did you mean mlp?",)),
    # the model
    "heads that do not divide": Bad("base_num_kv_heads=3", ("multiple of kv heads", "1, 2, 4, 8")),
    "an odd head_dim": Bad("head_dim=5", ("must be even",)),
    "an unknown rope": Bad("rope_type=ntk", ("one of default, linear, llama3.1, yarn",)),
    "a rope of another type": Bad("beta_fast=16", ("with rope_type=yarn only", "beta_fast=16")),
    "a context made shorter": Bad("rope_type=yarn rope_factor=0.5", ("a number, at least 1",)),
    "Gemma without a window": Bad("decoder_block=gemma2", ("whose size is missing", "4096")),
    "two RoPEs of one kind of layer": Bad(
        "local_rope_max_timescale=1e4", ("llama2 has one kind of layer", "decoder_block=gemma2")
    ),
    "a window of less than nothing": Bad("sliding_window_size=-1", ("at least 0",)),
    "flash on a processor": Bad("attention=flash", ("use dot_product on cpu",)),
    "cuDNN on a processor": Bad("attention=cudnn_flash_jax", ("for NVIDIA GPUs", "dot_product")),
    "cuDNN with a soft cap": Bad(
        "attention=cudnn_flash_jax attn_logits_soft_cap=50", ("cuDNN has no soft cap",)
    ),
    "Transformer Engine without a limit": Bad(
        "attention=cudnn_flash_te", ("max_segments_per_seq", "how many documents a row holds")
    ),
    "a name of other projects": Bad("attention_type=local_sliding", ("sliding_window_size",)),
    "too long rows": Bad("max_target_length=200000", ("max_target_length=131072",)),
    "a contradiction to the model": Bad(
        "model_name=llama3.1-8b base_emb_dim=64", ("contradicts 4096", "override_model_config=true")
    ),
    "too small a vocabulary": Bad("vocab_size=100", ("256",)),
    "tiles that do not divide": Bad("num_vocab_tiling=3", ("may be 1, 2, 4",)),
    # the mesh
    "two free degrees": Bad("ici_tensor_parallelism=-1", ("only one ici degree can be -1",)),
    "a degree of zero": Bad("ici_fsdp_parallelism=0", ("must be -1 or at least 1",)),
    "an unknown way to split rows": Bad(
        "context_parallel_strategy=ulysses", ("must be one of all_gather, ring",)
    ),
    "layers that do not divide over stages": Bad(
        "ici_pipeline_parallelism=2 base_num_decoder_layers=3",
        ("3 layers do not divide over 2 stages", "pipeline_parallel_layers=2"),
    ),
    "stages that devices decide on": Bad(
        "ici_pipeline_parallelism=-1 ici_fsdp_parallelism=1 base_num_decoder_layers=2",
        ("2 layers do not divide over 8 stages", "fewer stages"),
    ),
    "layers beside stages that devices must share": Bad(
        "ici_pipeline_parallelism=2 base_num_decoder_layers=3 pipeline_parallel_layers=2",
        ("'layers' of size 3 does not divide over stage 2", "{layers: []}"),
    ),
    "rows that do not divide over microbatches": Bad(
        "per_device_batch_size=1 ici_pipeline_parallelism=2 num_pipeline_microbatches=4",
        ("8 rows a forward pass", "4 devices", "multiple of 2", "microbatches may be 2"),
    ),
    "kinds of layers that differ between stages": Bad(
        "decoder_block=gemma2 sliding_window_size=9 ici_pipeline_parallelism=2 "
        "base_num_decoder_layers=8",
        ("num_layers_per_pipeline_stage=1", "layers of several kinds", "it may be 2, 4"),
    ),
    "kinds of layers that no stage can hold": Bad(
        "decoder_block=gemma3 sliding_window_size=9 ici_pipeline_parallelism=4 "
        "base_num_decoder_layers=12",
        ("layers of several kinds", "use 6, and at most 2 stages"),
    ),
    # data
    "no data": Bad("dataset_type=grain", ("needs grain_train_files",)),
    "data without grain": Bad("grain_train_files=a.jsonl", ("dataset_type=grain",), files=DATA),
    "data that is not there": Bad(
        "dataset_type=grain grain_train_files=gone*.jsonl", ("no file matches 'gone*.jsonl'",)
    ),
    "data that are compressed": Bad(
        "dataset_type=grain grain_train_files=a.jsonl.gz",
        ("a.jsonl.gz is compressed", "unpack it"),
        files={"a.jsonl.gz": "x"},
    ),
    "files without a weight": Bad(
        "dataset_type=grain grain_train_files=a.jsonl;b.jsonl,1",
        ("'a.jsonl' has no weight", "a*.jsonl,0.3;b*.jsonl,0.7"),
        files=DATA,
    ),
    "a negative weight": Bad(
        "dataset_type=grain grain_train_files=a.jsonl,-0.5;b.jsonl,1.5",
        ("weight of 'a.jsonl' must be above 0",),
        files=DATA,
    ),
    "weights that never come out even": Bad(
        "dataset_type=grain grain_train_files=a.jsonl,0.33333333;b.jsonl,1",
        ("exact only every 133333333 documents", "round them"),
        files=DATA,
    ),
    "a weighted file that is not there": Bad(
        "dataset_type=grain grain_train_files=a.jsonl,1;gone.jsonl,1",
        ("no file matches 'gone.jsonl'",),
        files=DATA,
    ),
    "weights for evaluation": Bad(
        "dataset_type=grain grain_train_files=a.jsonl eval_interval=1 "
        "grain_eval_files=a.jsonl,1;a.jsonl,2",
        ("evaluation knows no weights",),
        files=DATA,
    ),
    "a mixture that is not there": Bad(
        "dataset_type=grain grain_train_mixture_config_path=gone.yml",
        ("gone.yml", "cannot be read"),
    ),
    "a mixture without a weight": Bad(
        "dataset_type=grain grain_train_mixture_config_path=mix.yml",
        ("mix.yml:2: b must have a path and a weight",),
        files=DATA | {"mix.yml": "a: {path: a.jsonl, weight: 1}\nb: {path: a.jsonl}\n"},
    ),
    "two ways to name the data": Bad(
        "dataset_type=grain grain_train_files=a.jsonl grain_train_mixture_config_path=mix.yml",
        ("both say what to train on", "keep one"),
        files=DATA | {"mix.yml": "a: {path: a.jsonl, weight: 1}\n"},
    ),
    "a data set without a name": Bad("dataset_type=hf", ("needs hf_path",)),
    "a data set in a folder that is not there": Bad(
        "dataset_type=hf hf_path=./gone", ("there is no folder ./gone",)
    ),
    "workers for a stream": Bad(
        "dataset_type=hf hf_path=json hf_train_files=a.jsonl hf_streaming=true "
        "grain_worker_count=2",
        ("streams are read in a thread", "grain_worker_count=0"),
        files=DATA,
    ),
    "a data set without its kind": Bad("hf_path=a", ("add dataset_type=hf",)),
    "a data set to evaluate on that has no name": Bad(
        "dataset_type=hf hf_path=. eval_interval=5", ("needs hf_eval_split",)
    ),
    "chats in a column of text": Bad(
        "dataset_type=grain grain_train_files=a.jsonl use_sft=true",
        ("train_data_columns=[messages] or [prompt,completion]",),
        files=DATA,
    ),
    "a chat template that is not there": Bad(
        "dataset_type=grain grain_train_files=a.jsonl use_sft=true train_data_columns=messages "
        "chat_template=gone.jinja",
        ("chat_template=gone.jinja", "must be a file that can be read"),
        files=DATA,
    ),
    "a chat template without chats": Bad(
        "chat_template=t.jinja", ("add use_sft=true",), files={"t.jinja": ""}
    ),
    "chats without a tokenizer for templates": Bad(
        "use_sft=true train_data_columns=messages tokenizer_type=sentencepiece "
        "tokenizer_path=tokenizer.model",
        ("its special tokens cannot be written", "tokenizer_type=huggingface"),
        files={"tokenizer.model": "x"},
    ),
    "a SentencePiece model that is not there": Bad(
        "tokenizer_type=sentencepiece tokenizer_path=.", ("there is no file tokenizer.model",)
    ),
    "packing without packing": Bad(
        "packing=false grain_packing_type=first_fit", ("each row holds one document",)
    ),
    "a way to pack of another name": Bad(
        "grain_packing_type=best_fit", ("one of concat_then_split, first_fit",)
    ),
    "a folder for data": Bad("dataset_type=grain grain_train_files=.", (". is a folder",)),
    "evaluation without data": Bad(
        "dataset_type=grain grain_train_files=a.jsonl eval_interval=5",
        ("needs grain_eval_files",),
        files=DATA,
    ),
    "a tokenizer that is not there": Bad(
        "tokenizer_type=huggingface tokenizer_path=gone", ("there is no file gone",)
    ),
    # the optimizer
    "a key of another optimizer": Bad(
        "opt_type=lion adam_b1=0.8", ("adam_b1=0.8", "opt_type=lion", "does not use it")
    ),
    "an optimizer that is not there": Bad("opt_type=adam_pax", ("adamw, adafactor, muon",)),
    "more decay than there are steps": Bad(
        "lr_schedule_type=wsd wsd_decay_steps_fraction=1", ("100 steps of warm-up and 1000",)
    ),
    "a pattern that is none": Bad(
        "trainable_parameters_mask=a(b", ("'a(b' is not a regular expression",)
    ),
    "a pattern of no weight": Bad(
        "trainable_parameters_mask=mlp/wi_0/kernl",
        ("found in no weight's name", "did you mean decoder/layers/mlp/wi_0/kernel?"),
    ),
    "spikes that are not looked for": Bad(
        "skip_step_scaling_factor=3", ("no step is skipped", "skip_step_on_spikes=true")
    ),
    # checkpoints and output
    "a checkpoint that is not there": Bad("load_parameters_path=gone", ("does not exist",)),
    "a model for a whole state": Bad(
        "load_full_state_path=a", ("no checkpoint in it",), files={"a/config.json": "{}"}
    ),
    "weights of an unknown family": Bad(
        "load_parameters_path=a",
        ("model_type=mamba (a/config.json)",),
        files={"a/config.json": '{"model_type": "mamba"}'},
    ),
    "two checkpoints": Bad(
        "load_parameters_path=a/checkpoints/1 load_full_state_path=a/checkpoints/1",
        ("keep one",),
        files={"a/checkpoints/1/config/metadata": "{}"},
    ),
    "steps to keep that are never saved": Bad(
        "checkpoint_keep_period=300 checkpoint_period=200",
        ("checkpoint_keep_period=300", "use a multiple of 200, such as 400"),
    ),
    "a period of zero": Bad("checkpoint_keep_period=0", ("-1 keeps none for good",)),
    "steps to keep of all": Bad(
        "checkpoint_keep_period=1000 max_num_checkpoints_to_keep=-1", ("would be ignored",)
    ),
    "the best of what is not evaluated": Bad(
        "num_best_checkpoints_to_keep=1", ("eval_interval=-1", "set eval_interval=1000")
    ),
    "the best of what is not saved": Bad(
        "num_best_checkpoints_to_keep=1 eval_interval=300 checkpoint_period=200 eval_steps=1",
        ("num_best_checkpoints_to_keep=1", "a multiple of the other"),
    ),
    "a local folder without a period": Bad(
        "local_checkpoint_directory=ssd", ("local_checkpoint_period=0", "set both")
    ),
    "a local period without a folder": Bad("local_checkpoint_period=5", ("set both",)),
    "local checkpoints that are rarer": Bad(
        "local_checkpoint_directory=ssd local_checkpoint_period=1000",
        ("local_checkpoint_period=1000", "use less than 1000"),
    ),
    "local checkpoints in the run's folder": Bad(
        "local_checkpoint_directory=output/ local_checkpoint_period=5", ("another folder",)
    ),
    "local checkpoints of none": Bad(
        "local_checkpoint_directory=ssd local_checkpoint_period=5 enable_checkpointing=false",
        ("enable_checkpointing=true",),
    ),
    "a local folder that is a file": Bad(
        "local_checkpoint_directory=a.jsonl local_checkpoint_period=5",
        ("a.jsonl is not a folder",),
        files=DATA,
    ),
    "another profiler": Bad("profiler=nsys", ("one of '' (empty), xplane",)),
    "a trace after the end": Bad(
        "profiler=xplane steps=5", ("would end after 6 steps", "at least steps=6")
    ),
    "a trace of no steps": Bad("profiler=xplane profiler_steps=0", ("at least 1",)),
    "steps to trace without a profiler": Bad("profiler_steps=9", ("add profiler=xplane",)),
    "a key of upstream's profiler": Bad("profile_periodically_period=100", ("one trace a start",)),
    "a step of no run": Bad("restore_step=5", ("run_name is empty",)),
    "a run name with a slash": Bad("run_name=a/b", ("without a slash",)),
    "an output folder that is a file": Bad(
        "base_output_directory=a.jsonl", ("a.jsonl is not a folder",), files=DATA
    ),
    "checkpoints that are a file": Bad(
        "run_name=r",
        ("output/r/checkpoints is not a folder",),
        files={"output/r/checkpoints": ""},
    ),
    "TensorBoard files that are a file": Bad(
        "run_name=r",
        ("output/r/tensorboard is not a folder",),
        files={"output/r/tensorboard": ""},
    ),
    "the home folder of nobody": Bad(
        "base_output_directory=~no-such-user/runs", ("~no-such-user is nobody's home folder",)
    ),
    "a metrics file that is a device": Bad(
        "metrics_file=/dev/full", ("metrics_file=/dev/full", "is a device or a pipe")
    ),
    "a metrics file that is a folder": Bad("metrics_file=.", ("metrics_file=.", "is a folder")),
    "a compilation cache that is a file": Bad(
        "jax_cache_dir=a.jsonl", ("jax_cache_dir=a.jsonl", "is not a folder"), files=DATA
    ),
    "no output folder": Bad("base_output_directory=", ("there is no folder to write to",)),
}

# A run's folder with a checkpoint that is never read.


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_input_is_one_clear_error(
    bad: Bad,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in bad.environ.items():
        monkeypatch.setenv(name, value)
    assert_refused(bad, train.main, folder, capsys)


@pytest.mark.parametrize(
    "name", ["a misspelt key", "a misspelt variable", "a config that is no YAML"]
)
def test_the_program_ends_with_code_2_and_without_a_traceback(name: str, folder: Path) -> None:
    bad = BAD[name]
    make(bad.files, folder)
    before = sorted(folder.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-m", "maxtext.train", *bad.argv.split(" ")],
        env={**os.environ, **bad.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert not done.stdout
    assert_one_clear_error(done.stderr, bad.says)
    assert sorted(folder.rglob("*")) == before

"""`docs/config.md` from the schema: `python -m maxtext.config.docs > docs/config.md`."""

from maxtext.config.keys import RULES, Key, keys, sections
from maxtext.config.sources import file_source
from maxtext.config.values import value_text
from maxtext.config.yaml_files import base_file, read_file

_HEAD = """\
# Every key

Made by `python -m maxtext.config.docs` from `src/maxtext/config/schema*.py` and `configs/base.yml`;
a test holds it current.

    python -m maxtext.train [FILE.yml] [KEY=VALUE | --KEY VALUE] ...
    python -m maxtext.train --help WORD
    python -m maxtext.train print_config=true ...

## Where values come from

From the weakest to the strongest:

1. `configs/base.yml`: the default of every key.
2. The YAML file of `custom_mesh_and_rule`: it holds `mesh_axes` and `logical_axis_rules`, no more
   and no less, and replaces both whole.
3. The file of `model_name`: `configs/models/<model_name>.yml`, or a path that ends in `.yml`.
4. `FILE.yml`, the first argument. A line `base_config: other.yml` in it names a file that it starts
   from, and so on.
5. The command line: `KEY=VALUE`, `--KEY=VALUE` or `--KEY VALUE`.
6. The environment: `M_KEY=VALUE`, such as `M_LEARNING_RATE=1e-4`.

What 4 to 6 set may contradict the model's file only with `override_model_config=true`, and then
wins. A key twice in one file or on one command line, or on the command line and in the environment,
is an error. `logical_axis_rules` is merged rule by rule.

Where weights are loaded, the model and its tokenizer are what is stored with them: by the config of
a checkpoint, or by the config.json of a Hugging Face folder. A model's file then counts as a
setting of the user's, which may not contradict them. In training the tokenizer may be another, and
`max_target_length` is never taken over.

Names of config files (`base_config`, `model_name`, `custom_mesh_and_rule`) are relative to the file
they stand in, on the command line to the current folder, and else mean a bundled file. All other
paths are relative to the current folder.

Every environment variable of the form `M_` and capitals is taken for a key and is an error where it
is none, so that no misspelt setting is lost. If it belongs to another program, unset it for this
one: `env -u M_NAME python -m maxtext.train ...`. Names with small letters are left alone, except
where they spell a key.

## How values are read

A value is read by the type of its key and by nothing else. YAML's own types do not count: in a YAML
file too, `run_name: 2025_01_02` is that text and `learning_rate: 1e-4` that number.

| type | accepted | refused |
|---|---|---|
| text | all, to the letter: `prompt=Answer: yes`, `prompt=no`; `prompt=` is empty | null in YAML |
| true or false | these two, in any case | `yes`, `no`, `on`, `off`, `1`, `0` |
| a whole number | `10`, `-1`, `1_000` | `1e3`, `10.0`, `0x10`, `1:30`, `010` (octal in YAML) |
| a number | `1`, `0.5`, `.5`, `1e-4`, `500_000` | `inf`, `nan`, `01.5` |
| one of | the words listed, in small letters | |
| a list | `[a, b]` or `a,b`; `[]` is empty | |
| rules | `{mlp: [tensor, fsdp], norm: []}`; one name or null may stand for a list | |

In a YAML file, text that holds `: ` or ` #`, or starts with one of ``[ { * & ! @ % ` ``, needs
quotes.
"""

_UPSTREAM = """
## Where a default differs from upstream MaxText's

| key | upstream | here | why |
|---|---|---|---|
"""

DIFFERENCES = {
    "base_output_directory": ("empty", "a run works without naming a folder"),
    "jax_cache_dir": ("~/jax_cache", "caches belong into ~/.cache"),
    "base_emb_dim": ("2048", "the default model is small enough for a laptop"),
    "base_num_query_heads": ("16", "as above"),
    "base_num_kv_heads": ("16", "as above; grouped queries are the normal case today"),
    "head_dim": ("128", "as above"),
    "base_mlp_dim": ("7168", "as above"),
    "base_num_decoder_layers": ("16", "as above"),
    "vocab_size": ("32000", "the vocabulary of the byte tokenizer"),
    "rope_factor": ("40", "Llama 3.1's; upstream's is DeepSeek's"),
    "original_max_position_embeddings": ("4096", "Llama 3.1's"),
    "max_position_embeddings": ("163840", "Llama 3.1's"),
    "dtype": ("bfloat16", "bfloat16 on TPU and GPU, where it is fast; float32 on a CPU"),
    "float32_logits": ("false", "a softmax in bfloat16 loses three digits for little time"),
    "dataset_type": ("tfds", "runs without files"),
    "grain_file_type": ("arrayrecord", "files say by their suffix what they are"),
    "grain_worker_count": ("1", "a thread is enough for small files"),
    "grain_worker_count_eval": ("1", "as above"),
    "grain_per_worker_buffer_size": ("1", "one batch is read while another is taken"),
    "grain_prefetch_buffer_size": ("500", "batches on the devices, not records on the host"),
    "tokenizer_type": ("sentencepiece", "needs no file"),
    "max_target_length": ("2048", "the default model is small"),
    "per_device_batch_size": ("12.0", "a power of two"),
    "num_epoch": ("1", "`steps` alone ends a run"),
    "learning_rate": ("3.0e-5", "upstream's suits a finished model, this one a new one"),
    "muon_consistent_rms": ("None", "0 says the same with a number"),
    "steps": ("150001", "a first run comes to its end"),
    "checkpoint_period": ("10000", "a run of 1000 steps has one"),
    "max_num_checkpoints_to_keep": ("all", "a disk is not filled by an unattended run"),
    "log_period": ("100", "a first run shows that it goes on"),
    "decode_sampling_nucleus_p": ("-1", "a value that works once `nucleus` is chosen"),
    "decode_sampling_top_k": ("0", "a value that works once `topk` is chosen"),
}


def config_page() -> str:
    """The whole page as Markdown."""
    defaults = {
        name: value_text(setting.value)
        for name, setting in file_source(read_file(base_file()), "default").settings.items()
    }
    parts = [_HEAD]
    for name, kind in sections().items():
        parts.append(f"\n## {name}\n\n{(kind.__doc__ or '').splitlines()[0]}\n\n")
        parts.append("| key | type | default | meaning |\n|---|---|---|---|\n")
        parts += [_row(key, defaults) for key in keys().values() if key.section == name]
    parts.append(_UPSTREAM)
    parts += [
        f"| `{name}` | {theirs} | {defaults[name]} | {why} |\n"
        for name, (theirs, why) in DIFFERENCES.items()
    ]
    return "".join(parts)


def _row(key: Key, defaults: dict[str, str]) -> str:
    default = "see `configs/base.yml`" if key.name == RULES else f"`{defaults[key.name]}`"
    return f"| `{key.name}` | {key.allowed} | {default} | {key.doc} |\n"


if __name__ == "__main__":
    print(config_page(), end="")

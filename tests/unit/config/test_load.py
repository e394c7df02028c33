"""Which source wins, what they may not say against each other, and that nothing is lost."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from maxtext.config.errors import Problem
from maxtext.config.flat import flatten
from maxtext.config.keys import keys
from maxtext.config.load import load
from maxtext.config.yaml_files import config_folder

type Problems = Callable[..., tuple[Problem, ...]]

MODEL = "llama3.1-8b"


def test_each_source_is_stronger_than_the_one_before(folder: Path) -> None:
    (folder / "grand.yml").write_text("steps: 2\nlog_period: 2\nlearning_rate: 2\neval_steps: 2\n")
    (folder / "run.yml").write_text(
        "base_config: grand.yml\nsteps: 3\nlog_period: 3\nlearning_rate: 3\n"
    )
    loaded = load(["run.yml", "steps=4", "log_period=4"], {"M_ADAM_B1": "0.5"})
    training = loaded.config.training
    assert (training.steps, loaded.config.metrics.log_period) == (4, 4)
    assert loaded.config.optimizer.learning_rate == 3
    assert training.eval_steps == 2
    assert loaded.config.optimizer.adam_b1 == 0.5
    places = {key: str(loaded.origins[key]) for key in ("steps", "learning_rate", "eval_steps")}
    assert places == {
        "steps": "command line",
        "learning_rate": "run.yml:4",
        "eval_steps": "grand.yml:4",
    }
    assert str(loaded.origins["adam_b1"]) == "environment M_ADAM_B1"
    assert str(loaded.origins["adam_b2"]).startswith("configs/base.yml:")


def test_every_key_has_an_origin() -> None:
    assert set(keys()) <= set(load([], {}).origins)


@pytest.mark.parametrize(
    "argv", [["steps=5"], ["--steps=5"], ["--steps", "5"], ["run.yml"], ["./run.yml"]]
)
def test_every_way_to_write_a_setting_works(argv: list[str], folder: Path) -> None:
    (folder / "run.yml").write_text("steps: 5\n")
    assert load(argv, {}).config.training.steps == 5


def test_a_negative_number_may_follow_a_flag() -> None:
    assert load(["--num_epoch", "-1"], {}).config.data.num_epoch == -1


def test_a_path_with_an_equals_sign_is_a_file(folder: Path) -> None:
    (folder / "lr=1").mkdir()
    (folder / "lr=1" / "run.yml").write_text("steps: 5\n")
    assert load(["./lr=1/run.yml"], {}).config.training.steps == 5


def test_a_config_is_found_in_the_folder_of_the_file_that_names_it(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "run.yml").write_text("base_config: ../shared.yml\n")
    (folder / "shared.yml").write_text("base_config: base.yml\nsteps: 7\n")
    assert load(["a/run.yml"], {}).config.training.steps == 7


def test_a_users_own_base_yml_may_start_from_the_bundled_one(folder: Path) -> None:
    (folder / "base.yml").write_text("base_config: base.yml\nsteps: 7\n")
    assert load(["base.yml"], {}).config.training.steps == 7


def test_the_bundled_base_yml_as_the_users_file_changes_nothing() -> None:
    plain, named = load([], {}), load(["configs/base.yml"], {})
    assert plain.config == named.config
    assert not any(origin.by_user for origin in named.origins.values())


def test_a_model_file_is_stronger_than_base() -> None:
    loaded = load([f"model_name={MODEL}"], {})
    assert loaded.config.model.vocab_size == 128256
    assert str(loaded.origins["vocab_size"]).startswith(f"configs/models/{MODEL}.yml:")
    assert loaded.origins["vocab_size"].level == "model"


def test_a_model_file_may_be_named_by_path(folder: Path) -> None:
    (folder / "mine.yml").write_text(f"base_config: models/{MODEL}.yml\nvocab_size: 300\n")
    model = load(["model_name=mine.yml"], {}).config.model
    assert (model.vocab_size, model.emb_dim) == (300, 4096)
    (folder / "runs").mkdir()
    (folder / "runs" / "run.yml").write_text("model_name: ../mine.yml\n")
    assert load(["runs/run.yml"], {}).config.model.vocab_size == 300


def test_a_model_file_that_starts_from_base_yml_says_only_its_own(folder: Path) -> None:
    (folder / "mine.yml").write_text("base_config: base.yml\nvocab_size: 300\n")
    loaded = load(["model_name=mine.yml", "base_emb_dim=64"], {})
    assert (loaded.config.model.vocab_size, loaded.config.model.emb_dim) == (300, 64)


def test_a_broken_file_does_not_cause_a_second_problem(folder: Path, problems: Problems) -> None:
    (folder / "run.yml").write_text("override_model_config: true\nprompt: a: b\n")
    (problem,) = problems("run.yml", f"model_name={MODEL}", "base_emb_dim=64")
    assert "not valid YAML" in problem.message


@pytest.mark.parametrize("name", ["a/b", "", "zephyr"])
def test_a_model_that_is_not_there_names_those_that_are(name: str, problems: Problems) -> None:
    (problem,) = problems(f"model_name={name}")
    assert "llama2-7b" in problem.hint


@pytest.mark.parametrize("source", ["file", "command line", "environment"])
def test_a_contradiction_to_the_model_file_is_refused(
    source: str, folder: Path, problems: Problems
) -> None:
    (folder / "run.yml").write_text("vocab_size: 512\n" if source == "file" else "steps: 9\n")
    argv = ["run.yml", f"model_name={MODEL}"]
    argv += ["vocab_size=512"] if source == "command line" else []
    environ = {"M_VOCAB_SIZE": "512"} if source == "environment" else {}
    (problem,) = problems(*argv, environ=environ)
    assert (problem.key, problem.value) == ("vocab_size", "512")
    assert problem.origin is not None
    assert problem.origin.level == source
    assert problem.message.startswith(f"contradicts 128256 of configs/models/{MODEL}.yml:")
    assert "override_model_config=true" in problem.hint
    loaded = load([*argv, "override_model_config=true"], environ)
    assert loaded.config.model.vocab_size == 512
    assert loaded.origins["vocab_size"].level == source


@pytest.mark.parametrize("rate", ["500000", "5e5", "500_000.0"])
def test_saying_the_same_as_the_model_file_is_no_contradiction(rate: str) -> None:
    loaded = load([f"model_name={MODEL}", f"rope_max_timescale={rate}"], {})
    assert loaded.config.model.rope_max_timescale == 5e5


def test_a_models_file_says_only_what_the_model_is(folder: Path, problems: Problems) -> None:
    (folder / "mine.yml").write_text("run_name: x\nvocab_size: 300\n")
    (problem,) = problems("model_name=mine.yml")
    assert str(problem).startswith("run_name=x (mine.yml:1): does not belong into a model's file")


def test_all_problems_come_at_once(folder: Path, problems: Problems) -> None:
    (folder / "run.yml").write_text("stepz: 5\nsteps: 5\nsteps: 6\npacking: yes\n")
    found = problems(
        "run.yml",
        "learning_rate=-1",
        "base_num_kv_heads=3",
        "adam_b1=x",
        "adam_b1=y",
        "--lr",
        "3",
        environ={"M_ADAM_B9": "1", "M_DROPOUT_RATE": "1"},
    )
    assert {(problem.key, problem.origin and problem.origin.level) for problem in found} == {
        ("stepz", "file"),
        ("steps", "file"),
        ("packing", "file"),
        ("learning_rate", "command line"),
        ("base_num_kv_heads", "command line"),
        ("adam_b1", "command line"),
        ("adam_b1", None),
        ("lr", "command line"),
        ("M_ADAM_B9", "environment"),
        ("dropout_rate", "environment"),
    }


def test_a_misspelt_key_does_not_cause_a_second_problem(problems: Problems) -> None:
    (problem,) = problems("dataset_type=grain", "grain_train_file=x.jsonl")
    assert problem.hint == "did you mean grain_train_files?"


def test_a_refused_value_does_not_cause_a_second_problem(problems: Problems) -> None:
    (problem,) = problems("base_num_query_heads=0", "base_num_kv_heads=3")
    assert problem.key == "base_num_query_heads"


def test_a_key_on_the_command_line_and_in_the_environment_is_refused(problems: Problems) -> None:
    (problem,) = problems("steps=5", environ={"M_STEPS": "5"})
    assert str(problem) == (
        "steps=5 with steps=5 (environment M_STEPS): "
        "is given on the command line and in the environment; keep one"
    )


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("M_STEPZ", "did you mean M_STEPS? (if it is another program's, unset it: env -u M_STEPZ)"),
        ("M_HARDWARE", "JAX_PLATFORMS"),
        ("M_BASE_CONFIG", "belongs into a YAML file"),
        ("M_QQ", "env -u M_QQ"),
    ],
)
def test_a_variable_that_is_no_key_is_refused(variable: str, hint: str, problems: Problems) -> None:
    (problem,) = problems(environ={variable: "1"})
    assert problem.key == variable
    assert hint in problem.hint


def test_a_key_in_small_letters_in_the_environment_is_refused(problems: Problems) -> None:
    (problem,) = problems(environ={"M_steps": "1"})
    assert str(problem) == "M_steps=1: is written in capitals in the environment: M_STEPS"


@pytest.mark.parametrize("variable", ["M_", "M_pkg", "M_Perl5", "MSTEPS", "m_steps", "M_1"])
def test_variables_of_other_programs_are_left_alone(variable: str) -> None:
    assert load([], {variable: "1"}).config == load([], {}).config


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--run-name=x", "run-name=x (command line): there is no such key; did you mean run_name?"),
        ("RUN_NAME=x", "RUN_NAME=x (command line): there is no such key; did you mean run_name?"),
        ("emb_dim=64", "did you mean base_emb_dim?"),
        ("hardware=cpu", "set the environment variable JAX_PLATFORMS=cpu, cuda or tpu"),
        ("sparse_matmul=true", "is a key of upstream MaxText that this project does not have"),
        ("zzzz=1", "`--help WORD` lists the keys about a word"),
        ("base_config=x.yml", "give that file as the first argument"),
        ("steps", "steps (command line): is not key=value; write steps=VALUE"),
        ("--steps", "--steps (command line): has no value; write steps=VALUE"),
    ],
)
def test_an_argument_that_is_no_setting_says_what_would_be(
    argument: str, text: str, problems: Problems
) -> None:
    (problem,) = problems("log_period=1", argument)
    assert text in str(problem)


def test_a_message_is_never_long(problems: Problems) -> None:
    flag = f"--{'b' * 9000}"
    found = problems(f"prompt={'a' * 9000}", "prompt=b", f"mesh_axes={'c' * 9000}", flag)
    assert len(found) >= 3
    assert all(len(str(problem)) < 1100 for problem in found)


def test_a_flag_does_not_swallow_the_next_one(problems: Problems) -> None:
    (problem,) = problems("--packing", "--steps=5")
    assert problem.key == "--packing"


BAD_FILES = [
    (b"", "run.yml: holds no keys"),
    (b"# nothing\n", "run.yml: holds no keys"),
    (b"- a\n- b\n", "run.yml: must be a mapping"),
    (b"steps\n", "run.yml: must be a mapping"),
    (b"steps: 5\nprompt: Answer: yes\n", "run.yml:2: not valid YAML: mapping values"),
    (b"prompt: [INST] hi\n", "run.yml:1: not valid YAML:"),
    (b"prompt: *star\n", "run.yml:1: not valid YAML: found undefined alias"),
    (b"steps: 5\n\tlog_period: 1\n", "run.yml:2: not valid YAML:"),
    (b"steps: 5\nprompt: \xff\n", "run.yml:2: is not text in UTF-8"),
    (b"steps: 5\x07\n", "run.yml: not valid YAML:"),
    (b"train_data_columns: " + b"[" * 100_000, "run.yml:1: not valid YAML: exceeded"),
    (b"train_data_columns: &a [*a]\n", "train_data_columns=[...] (run.yml:1): must be a list"),
    (b"<<: {steps: 5}\n", "<<={...} (run.yml:1): there is no such key"),
    (b"a: 1\n---\nb: 2\n", "run.yml:2: not valid YAML:"),
    (b"steps: 5\nlog_period: 1\nsteps: 5\n", "steps (run.yml:3): is given twice in this file"),
    (b"prompt: {x}\n", "prompt={...} (run.yml:1): must be text; put text in quotes"),
    (b"steps: [1]\n", "steps=[1] (run.yml:1): must be a whole number"),
    (b"base_config: gone.yml\n", "base_config=gone.yml (run.yml:1): no such file"),
    (b"base_config: [a]\n", "base_config (run.yml:1): must be the name of a YAML file"),
    (b"base_config: loop.yml\n", "base_config=run.yml (loop.yml:1): leads back to a file"),
    (b"logical_axis_rules: {mlp: [tensor], mlp: []}\n", "logical_axis_rules.mlp (run.yml:1): is"),
    (b"logical_axis_rules: [[mlp, tensor]]\n", "logical_axis_rules=[...] (run.yml:1): must be a"),
    (b"logical_axis_rules:\n", "logical_axis_rules='' (run.yml:1): must be a mapping"),
    (b"logical_axis_rules: {mlp: {a: b}}\n", "logical_axis_rules.mlp={...} (run.yml:1): must be"),
]


@pytest.mark.parametrize(("content", "text"), BAD_FILES)
def test_a_bad_file_is_one_problem_with_its_line(
    content: bytes, text: str, folder: Path, problems: Problems
) -> None:
    (folder / "run.yml").write_bytes(content)
    (folder / "loop.yml").write_text("base_config: run.yml\n")
    (problem,) = problems("run.yml")
    assert str(problem).startswith(text)
    assert str(problem).count("\n") <= 1


def test_a_file_that_is_missing_or_a_folder_is_one_problem(
    folder: Path, problems: Problems
) -> None:
    (missing,) = problems("quickstrat.yml", "dataset_type=grain")
    assert str(missing).startswith("quickstrat.yml (command line): no such file, neither in ")
    (is_folder,) = problems(".")
    assert "cannot be read: Is a directory" in str(is_folder)


@pytest.mark.parametrize(
    ("content", "text"),
    [("steps: 5\nprompt: a: b\n", "run.yml:2: not valid"), ("a: " + "[" * 9000, "too deeply")],
)
def test_a_bad_file_is_one_problem_without_libyaml_too(
    content: str, text: str, folder: Path, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maxtext.config.yaml_files._Loader", yaml.SafeLoader)
    (folder / "run.yml").write_text(content)
    (problem,) = problems("run.yml")
    assert text in str(problem)


def test_a_byte_order_mark_is_no_part_of_the_first_key(folder: Path) -> None:
    (folder / "run.yml").write_bytes(b"\xef\xbb\xbfsteps: 5\r\nlog_period: 2\r\n")
    assert load(["run.yml"], {}).config.training.steps == 5


def test_both_lines_of_a_key_given_twice_are_named(folder: Path, problems: Problems) -> None:
    (folder / "run.yml").write_text("steps: 5\n\nsteps: 5\n")
    (problem,) = problems("run.yml")
    assert str(problem) == (
        "steps (run.yml:3): is given twice in this file, first at line 1; keep one"
    )


def test_rules_are_merged_one_by_one(folder: Path) -> None:
    base = dict(load([], {}).config.mesh.logical_axis_rules)
    (folder / "run.yml").write_text(
        "logical_axis_rules:\n  mlp: [tensor, fsdp]\n  norm: fsdp\n  kv: null\n  embed: data\n"
    )
    argv = ["run.yml", "logical_axis_rules={embed: [], vocab: [data]}"]
    loaded = load(argv, {})
    assert dict(loaded.config.mesh.logical_axis_rules) == base | {
        "mlp": ("tensor", "fsdp"),
        "norm": ("fsdp",),
        "kv": (),
        "embed": (),
        "vocab": ("data",),
    }
    assert str(loaded.origins["logical_axis_rules.mlp"]) == "run.yml:2"
    assert str(loaded.origins["logical_axis_rules.embed"]) == "command line"
    assert loaded.origins["logical_axis_rules"].level == "command line"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("{mpl: [tensor]}", "logical_axis_rules.mpl=[tensor] (command line): there is no such"),
        ("{mlp: [tensr]}", "there is no mesh axis 'tensr'; did you mean tensor?"),
        ("{mlp: [tensor, tensor]}", "names 'tensor' twice"),
        ("{mlp: [a], mlp: [b]}", "logical_axis_rules.mlp (command line): is given twice"),
        ("mlp", "must be a mapping of logical axes"),
        ("{mlp:[tensor]}", "YAML wants a space after a colon: {mlp: [tensor]}"),
        ("{mlp: [", "must be a mapping of logical axes"),
    ],
)
def test_a_bad_rule_is_named(rules: str, text: str, problems: Problems) -> None:
    assert text in "\n".join(map(str, problems(f"logical_axis_rules={rules}")))


def mesh_file(folder: Path, *, without: str = "", extra: str = "") -> None:
    rules = {axis: [] for axis, _ in load([], {}).config.mesh.logical_axis_rules}
    rules |= {"embed": ["fsdp"], "activation_batch": ["fsdp"]}
    rules.pop(without, None)
    text = f"mesh_axes: [fsdp, data]\nlogical_axis_rules: {json.dumps(rules)}\n{extra}"
    (folder / "mesh.yml").write_text(text)


def test_a_mesh_file_replaces_the_mesh_and_all_rules(folder: Path) -> None:
    mesh_file(folder)
    (folder / "run.yml").write_text("logical_axis_rules: {mlp: [fsdp]}\n")
    loaded = load(
        ["run.yml", "custom_mesh_and_rule=mesh.yml", "logical_axis_rules={norm: data}"], {}
    )
    rules = {axis: axes for axis, axes in loaded.config.mesh.logical_axis_rules if axes}
    assert loaded.config.mesh.mesh_axes == ("fsdp", "data")
    assert rules == {
        "embed": ("fsdp",),
        "activation_batch": ("fsdp",),
        "mlp": ("fsdp",),
        "norm": ("data",),
    }
    assert str(loaded.origins["mesh_axes"]) == "mesh.yml:1"


def test_a_mesh_file_holds_two_keys_and_all_rules(folder: Path, problems: Problems) -> None:
    mesh_file(folder, extra="steps: 5\n")
    (problem,) = problems("custom_mesh_and_rule=mesh.yml")
    assert "no more and no less: see steps" in str(problem)
    mesh_file(folder, without="vocab")
    (problem,) = problems("custom_mesh_and_rule=mesh.yml")
    assert "has no rule for vocab" in str(problem)
    (problem,) = problems("custom_mesh_and_rule=gone.yml")
    assert "no such file" in str(problem)


def checkpoint(folder: Path, *argv: str) -> Path:
    config = load([*argv, "enable_checkpointing=false", "enable_tensorboard=false"], {}).config
    for step in (9, 10):
        item = folder / "run" / "checkpoints" / str(step) / "config"
        item.mkdir(parents=True)
        kept = flatten(config) | {"max_target_length": step}
        (item / "metadata").write_text(json.dumps(kept))
    (folder / "run" / "checkpoints" / "11.orbax-checkpoint-tmp").mkdir()
    return folder / "run"


@pytest.mark.parametrize(
    ("inside", "length"), [("", 10), ("checkpoints", 10), ("checkpoints/9", 9)]
)
def test_the_model_comes_from_the_checkpoint(inside: str, length: int, folder: Path) -> None:
    run = checkpoint(folder, "base_emb_dim=96", "learning_rate=0.5", "add_bos=false")
    path = run / inside
    loaded = load([f"load_parameters_path={path}"], {}, model_from_checkpoint=True)
    assert loaded.config.model.emb_dim == 96
    assert loaded.config.data.max_target_length == length
    assert loaded.config.data.add_bos is False
    assert loaded.config.optimizer.learning_rate == load([], {}).config.optimizer.learning_rate
    assert loaded.origins["base_emb_dim"].level == "checkpoint"
    assert str(loaded.origins["base_emb_dim"]).endswith(f"{length}/config/metadata")


@pytest.mark.parametrize("key", ["load_parameters_path", "load_full_state_path"])
def test_training_takes_the_model_of_the_weights_it_starts_from(key: str, folder: Path) -> None:
    run = checkpoint(folder, "base_emb_dim=96", "learning_rate=0.5", "add_bos=false")
    loaded = load([f"{key}={run}"], {})
    assert loaded.config.model.emb_dim == 96
    assert loaded.config.data.add_bos is False
    assert loaded.config.data.max_target_length == 512
    assert loaded.config.optimizer.learning_rate == load([], {}).config.optimizer.learning_rate


@pytest.mark.parametrize("argument", ["base_emb_dim=64", f"model_name={MODEL}"])
def test_a_contradiction_to_the_checkpoint_is_refused(
    argument: str, folder: Path, problems: Problems
) -> None:
    run = checkpoint(folder, "base_emb_dim=96")
    found = problems(f"load_parameters_path={run}", argument, from_checkpoint=True)
    (problem,) = [problem for problem in found if problem.key == "base_emb_dim"]
    assert problem.message.startswith("contradicts 96 of ")


@pytest.mark.parametrize(
    ("content", "text"),
    [("", "is not JSON"), ("[1]", "is no mapping"), ('{"base_emb_dim": "x"}', "must be a whole")],
)
def test_a_damaged_stored_config_is_one_problem(
    content: str, text: str, folder: Path, problems: Problems
) -> None:
    run = checkpoint(folder)
    (run / "checkpoints" / "10" / "config" / "metadata").write_text(content)
    (problem,) = problems(f"load_parameters_path={run}", from_checkpoint=True)
    assert text in str(problem)


def test_the_model_of_a_run_comes_from_its_checkpoint(folder: Path) -> None:
    run = checkpoint(folder, "base_emb_dim=96")
    argv = [f"base_output_directory={run.parent}", f"run_name={run.name}"]
    assert load(argv, {}, model_from_checkpoint=True).config.model.emb_dim == 96
    assert load(argv, {}).config.model.emb_dim == 512


def test_a_program_that_does_not_train_needs_no_data_and_writes_nothing(folder: Path) -> None:
    argv = ["dataset_type=grain", "grain_train_files=gone.jsonl", "base_output_directory="]
    argv += [f"load_parameters_path={checkpoint(folder)}"]
    assert load(argv, {}, model_from_checkpoint=True).config.data.dataset_type == "grain"


@pytest.mark.parametrize(
    "model", sorted(file.stem for file in (config_folder() / "models").glob("*.yml"))
)
def test_every_model_file_loads(model: str) -> None:
    assert load([f"model_name={model}"], {}).config.run.model_name == model

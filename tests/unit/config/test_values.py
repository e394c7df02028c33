"""A value is read by the type of its key, wherever it is written."""

from pathlib import Path

import pytest

from maxtext.config.errors import ConfigError
from maxtext.config.load import load

RETYPED_BY_YAML = [
    "1e-4",
    "1.0e-4",
    "1e4",
    ".5",
    "no",
    "on",
    "yes",
    "null",
    "~",
    "None",
    "inf",
    "nan",
    "2025_01_02",
    "1_000",
    "0010",
    "08",
    "1:30",
    "0x10",
    "Answer: yes",
    "I love #tags",
    "I love # tags",
    "[INST] hi [/INST]",
    "*star",
    "@at",
    "a: b: c",
    "{x}",
    "- item",
    "",
    "a=b",
    "  spaces  ",
    "two\nlines",
    "'quoted'",
    '"quoted"',
    "!tag",
    "&anchor",
    "%",
    "true",
    "snow ☃",
]


@pytest.mark.parametrize("text", RETYPED_BY_YAML)
def test_text_on_the_command_line_stays_to_the_letter(text: str) -> None:
    assert load([f"prompt={text}"], {}).config.decode.prompt == text


@pytest.mark.parametrize("text", [text for text in RETYPED_BY_YAML if text])
def test_text_after_a_flag_stays_to_the_letter(text: str) -> None:
    assert load(["--prompt", text], {}).config.decode.prompt == text


@pytest.mark.parametrize("text", RETYPED_BY_YAML)
def test_text_in_the_environment_stays_to_the_letter(text: str) -> None:
    assert load([], {"M_PROMPT": text}).config.decode.prompt == text


@pytest.mark.parametrize(
    "text",
    ["1e-4", "1e4", "no", "on", "None", "inf", "2025_01_02", "1_000", "0010", "1:30", "0x10", "08"],
)
def test_unquoted_text_in_yaml_stays_to_the_letter(text: str, folder: Path) -> None:
    (folder / "run.yml").write_text(f"run_name: {text}\n")
    assert load(["run.yml"], {}).config.run.run_name == text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("'no'", "no"),
        ('"null"', "null"),
        ("''", ""),
        ("", ""),
        ('"two\\nlines"', "two\nlines"),
        ("'it''s'", "it's"),
        ("I love#tags", "I love#tags"),
        ("I love # a comment", "I love"),
        ("|-\n  two\n  lines", "two\nlines"),
    ],
)
def test_quotes_and_blocks_in_yaml_are_respected(written: str, meant: str, folder: Path) -> None:
    (folder / "run.yml").write_text(f"prompt: {written}\n")
    assert load(["run.yml"], {}).config.decode.prompt == meant


@pytest.mark.parametrize("null", ["null", "~", "Null", "NULL"])
def test_null_in_yaml_is_no_text(null: str, folder: Path) -> None:
    (folder / "run.yml").write_text(f"metrics_file: {null}\n")
    with pytest.raises(ConfigError, match=r"metrics_file=.* \(run.yml:1\): must be text; write ''"):
        load(["run.yml"], {})


NUMBERS = [
    ("1e-4", 1e-4),
    ("1.0e-4", 1e-4),
    ("1E-4", 1e-4),
    (".5", 0.5),
    ("1.", 1.0),
    ("1e4", 1e4),
    ("0", 0.0),
    ("+1", 1.0),
    ("1_000.5", 1000.5),
    ("3", 3.0),
]


@pytest.mark.parametrize(("text", "number"), NUMBERS)
def test_numbers_are_numbers_in_every_source(text: str, number: float, folder: Path) -> None:
    (folder / "run.yml").write_text(f"learning_rate: {text}\n")
    (folder / "quoted.yml").write_text(f"learning_rate: '{text}'\n")
    rates = [
        load([f"learning_rate={text}"], {}).config.optimizer.learning_rate,
        load(["run.yml"], {}).config.optimizer.learning_rate,
        load(["quoted.yml"], {}).config.optimizer.learning_rate,
        load([], {"M_LEARNING_RATE": text}).config.optimizer.learning_rate,
    ]
    assert rates == [number] * 4
    assert all(type(rate) is float for rate in rates)


@pytest.mark.parametrize(
    "text",
    ["inf", "-inf", ".inf", "nan", ".nan", "1e400", "01.5", "1,5", "1e", "0x10", "", "None", "yes"],
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a number, at least 0"):
        load([f"learning_rate={text}"], {})


@pytest.mark.parametrize(("text", "number"), [("1000", 1000), ("1_000", 1000), (" 7 ", 7)])
def test_whole_numbers_are_decimal(text: str, number: int) -> None:
    assert load([f"steps={text}"], {}).config.training.steps == number


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0010", "without leading zeros: steps=10"),
        ("08", "without leading zeros: steps=8"),
        ("1e3", "write steps=1000"),
        ("10.0", "write steps=10"),
        ("0x10", ""),
        ("1:30", ""),
        ("2025_01_02", ""),
        ("1__0", ""),
        ("10_00", ""),
        ("1.5", ""),
        ("", ""),
        ("None", ""),
        ("true", ""),
        ("9" * 5000, ""),
        ("9" * 18, "no whole number may be over 2147483647"),
        ("٣", ""),
    ],
)
def test_what_is_no_whole_number_is_refused(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="must be a whole number, at least 1") as caught:
        load([f"steps={text}"], {})
    (problem,) = caught.value.problems
    assert hint in problem.hint
    assert bool(hint) == bool(problem.hint)


@pytest.mark.parametrize(
    ("text", "flag"), [("true", True), ("False", False), ("TRUE", True), ("false", False)]
)
def test_flags_are_true_and_false_in_any_case(text: str, flag: bool, folder: Path) -> None:
    (folder / "run.yml").write_text(f"packing: {text}\n")
    assert load([f"packing={text}"], {}).config.data.packing is flag
    assert load(["run.yml"], {}).config.data.packing is flag


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "1", "0", "t", "", "null", "None"])
def test_other_words_are_no_flags(text: str, folder: Path) -> None:
    (folder / "run.yml").write_text(f"packing: {text}\n")
    for argv in ([f"packing={text}"], ["run.yml"]):
        with pytest.raises(ConfigError, match="must be true or false"):
            load(argv, {})


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a,b", ("a", "b")),
        ("[a, b]", ("a", "b")),
        ("['a', \"b\"]", ("a", "b")),
        ("a", ("a",)),
        ("no, 0010", ("no", "0010")),
    ],
)
def test_lists_are_written_with_or_without_brackets(text: str, items: tuple[str, ...]) -> None:
    assert load([f"train_data_columns={text}"], {}).config.data.train_data_columns == items


def test_items_in_quotes_may_hold_anything() -> None:
    text = """trainable_parameters_mask=['[a-z]{1,2}/x', "it's", plain]"""
    mask = load([text], {}).config.optimizer.trainable_parameters_mask
    assert mask == ("[a-z]{1,2}/x", "it's", "plain")
    with pytest.raises(ConfigError, match="put an item with commas or brackets in quotes"):
        load(["trainable_parameters_mask=[a-z]{1,2}"], {})


@pytest.mark.parametrize("text", ["", "a,,b", "[a", "[[a]]", "{a: b}", "a,"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a list"):
        load([f"train_data_columns={text}"], {})


@pytest.mark.parametrize("text", ["[a, null]", "[[a]]", "{a: b}", "[a, {b: c}]"])
def test_what_is_no_list_of_words_in_yaml_is_refused(text: str, folder: Path) -> None:
    (folder / "run.yml").write_text(f"train_data_columns: {text}\n")
    with pytest.raises(ConfigError, match=r"train_data_columns=.* \(run.yml:1\): must be a list"):
        load(["run.yml"], {})


def test_lists_in_yaml_are_words_to_the_letter(folder: Path) -> None:
    (folder / "run.yml").write_text("train_data_columns:\n- no\n- 0010\n- 'a b'\n")
    assert load(["run.yml"], {}).config.data.train_data_columns == ("no", "0010", "a b")


def test_a_wrong_word_names_the_nearest_choice() -> None:
    with pytest.raises(ConfigError) as caught:
        load(["dtype=bfloat", "mlp_activations=silu,liner"], {})
    dtype, activations = sorted(caught.value.problems, key=lambda problem: problem.key)
    assert dtype.message == "must be one of auto, float32, bfloat16, float16"
    assert dtype.hint == "did you mean bfloat16?"
    assert activations.hint == "did you mean linear?"


def test_rules_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        load(["logical_axis_rules=\udcff"], {})


def test_an_argument_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be text in UTF-8"):
        load(["prompt=\udcff"], {})


def test_a_nul_in_yaml_is_refused(folder: Path) -> None:
    (folder / "run.yml").write_text('metrics_file: "a\\0b"\n')
    with pytest.raises(ConfigError, match="must not hold the character NUL"):
        load(["run.yml"], {})

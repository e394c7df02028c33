"""What users type wrong in decoding and serving: one clear error each, and nothing is written."""

import socket
from pathlib import Path

import pytest

from bad_input import Bad, assert_refused
from maxtext import decode, serve

RUN = {"output/r/checkpoints/5/config/metadata": "{}"}
WRONG_PROMPTS = {
    '{"messages": "hi"}': 'messages must be a list of messages, not "hi"',
    '{"messages": []}': "messages must be a list of messages, not []",
    '{"messages": ["hi"]}': "message 1 of 'messages' must be an object, not str",
    '{"messages": [{"role": "user"}]}': (
        "message 1 of 'messages': 'content' must be text, and is missing"
    ),
    '{"prompt": 5}': "prompt must be text, not int",
    '{"prompt": "a", "stop": null}': "stop must be a text or a list of texts, not null",
    '{"prompt": "a", "stop": [5]}': "stop must be a text or a list of texts, not [5]",
    '{"prompt": "a", "seed": true}': "seed must be a whole number, not true",
    '{"prompt": "a", "max_new_tokens": 2.5}': "max_new_tokens must be a whole number, not 2.5",
}
BAD_DECODING = {
    "prompts that are not there": Bad(
        "run_name=r prompts_file=gone.txt",
        ("prompts_file=gone.txt", "must be a file that can be read"),
        files=RUN,
    ),
    "a prompt beside a file of them": Bad(
        "run_name=r prompt=a prompts_file=p.txt",
        ("prompt=a", "would be ignored: prompts_file says", "prompt= gives none"),
        files=RUN | {"p.txt": "b"},
    ),
    "a chat template that is not there": Bad(
        "run_name=r use_chat_template=true chat_template=gone.jinja",
        ("chat_template=gone.jinja", "must be a file that can be read"),
        files=RUN,
    ),
    "a chat without a template": Bad(
        "run_name=r use_chat_template=true",
        ("prompt: the tokenizer has no chat template",),
        files=RUN,
    ),
    "a file without prompts": Bad(
        "run_name=r prompts_file=p.txt", ("p.txt has no prompts",), files=RUN | {"p.txt": "\n"}
    ),
    "a prompt that is no JSON": Bad(
        "run_name=r prompts_file=p.jsonl",
        ("p.jsonl:2: no JSON",),
        files=RUN | {"p.jsonl": '{"prompt": "a"}\na\n'},
    ),
    "a prompt of nothing but brackets": Bad(
        "run_name=r prompts_file=p.jsonl",
        ("p.jsonl:1: no JSON",),
        files=RUN | {"p.jsonl": "[" * 100_000},
    ),
    "a prompt with a misspelt key": Bad(
        "run_name=r prompts_file=p.jsonl",
        ("p.jsonl:1: must have prompt or messages", "it has prompt, maximum"),
        files=RUN | {"p.jsonl": '{"prompt": "a", "maximum": 3}\n'},
    ),
    "a prompt with a wrong number": Bad(
        "run_name=r prompts_file=p.jsonl",
        ("p.jsonl:1: max_new_tokens=0 must be at least 1",),
        files=RUN | {"p.jsonl": '{"prompt": "a", "max_new_tokens": 0}\n'},
    ),
    **{
        f"a prompt with {line}": Bad(
            "run_name=r prompts_file=p.jsonl",
            (f"p.jsonl:1: {says}",),
            files=RUN | {"p.jsonl": line},
        )
        for line, says in WRONG_PROMPTS.items()
    },
    "a prompt that no text can hold": Bad(
        "run_name=r prompts_file=p.jsonl",
        ("p.jsonl:1: is not text in UTF-8",),
        files=RUN | {"p.jsonl": '{"prompt": "\\ud800"}'},
    ),
    "a prompt of a file that is too long": Bad(
        "run_name=r prompts_file=p.txt max_target_length=8 max_new_tokens=4",
        ("p.txt:1: ", "5 tokens of the prompt and max_new_tokens=4 exceed max_target_length=8"),
        files=RUN | {"p.txt": "abcd\n"},
    ),
    "log probabilities of one prompt": Bad(
        "run_name=r decode_logprobs=2", ("decode_logprobs=2", "with prompts_file only"), files=RUN
    ),
    "stages": Bad(
        "run_name=r ici_pipeline_parallelism=2",
        ("stages are for training", "set ici_pipeline_parallelism=1"),
        files=RUN,
    ),
    "no pages": Bad("run_name=r num_pages=0", ("num_pages=0", "-1 or at least 1"), files=RUN),
    "an EOS that is no token": Bad(
        "run_name=r decode_eos_ids=[256]", ("decode_eos_ids", "0 to 255"), files=RUN
    ),
    "an empty stop text": Bad(
        "run_name=r stop_strings=['']", ("stop_strings=['']", "must be a list"), files=RUN
    ),
    "no model": Bad("prompt=hello", ("nothing says which model to use", "load_parameters_path")),
    "a run that is not there": Bad("run_name=gone", ("there is no checkpoint in output/gone",)),
    "a checkpoint that is not there": Bad("load_parameters_path=gone", ("does not exist",)),
    "a prompt that is no text": Bad(
        "run_name=r prompt=\udce9",
        ("must be text in UTF-8",),
        files={"output/r/checkpoints/5/config/metadata": '{"base_emb_dim": 96}'},
    ),
    "a step without its config": Bad(
        "run_name=r",
        ("output/r/checkpoints/5/config/metadata", "cannot be read"),
        files={"output/r/checkpoints/5/config/other": ""},
    ),
    "a step with half of its config": Bad(
        "load_parameters_path=output/r",
        ("output/r/checkpoints/5/config/metadata", "is damaged"),
        files={"output/r/checkpoints/5/config/metadata": "{"},
    ),
    "another model than the run's": Bad(
        "run_name=r base_emb_dim=64",
        ("base_emb_dim=64", "contradicts 96", "override_model_config=true"),
        files={"output/r/checkpoints/5/config/metadata": '{"base_emb_dim": 96}'},
    ),
}

MODEL = {"output/r/checkpoints/5/config/metadata": '{"base_emb_dim": 96}'}
BAD_SERVING = {
    "no model": Bad("serve_port=0", ("nothing says which model to use", "load_parameters_path")),
    "a port that is none": Bad(
        "run_name=r serve_port=70000", ("serve_port=70000", "at most 65535"), files=MODEL
    ),
    "a key of other servers": Bad("run_name=r port=80", ("port=80", "use serve_port"), files=MODEL),
    "an address of another machine": Bad(
        "run_name=r serve_host=192.0.2.1", ("192.0.2.1:8000 cannot be listened on",), files=MODEL
    ),
}


@pytest.mark.parametrize("bad", BAD_DECODING.values(), ids=BAD_DECODING)
def test_a_bad_input_to_decoding_is_one_clear_error(
    bad: Bad, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(bad, decode.main, folder, capsys)


@pytest.mark.parametrize("bad", BAD_SERVING.values(), ids=BAD_SERVING)
def test_a_bad_input_to_serving_is_one_clear_error(
    bad: Bad, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(bad, serve.main, folder, capsys)


def test_a_port_that_is_taken_is_one_clear_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        says = (f"serve_port={port} (command line)", "another program listens", "serve_port=0")
        bad = Bad(f"run_name=r serve_port={port}", says, files=MODEL)
        assert_refused(bad, serve.main, folder, capsys)


def test_serving_without_its_packages_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    says = (
        "needs starlette, uvicorn, prometheus_client",
        "pip install starlette uvicorn prometheus_client",
    )
    assert_refused(Bad("run_name=r", says, files=MODEL), serve.main, folder, capsys)

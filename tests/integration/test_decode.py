"""Decoding through the command line: greedy text is what repeated forward passes give."""

import functools
import io
import json

import jax.numpy as jnp
import pytest

from maxtext import decode
from maxtext.checkpoint.loading import load_parameters
from maxtext.config.load import load
from maxtext.data.tokenizer import ByteTokenizer
from maxtext.layers.attentions import training_attend
from maxtext.models.decoder import Runtime, hidden_states, output_kernel
from maxtext.parallel.layout import use_layout
from maxtext.parallel.stages import Stages
from maxtext.serving.server import load_service
from maxtext.training.setup import prepare

TOKENIZER = ByteTokenizer()


@pytest.fixture
def trained(runs) -> list[str]:
    """The command line of a run that has taken a few large steps on its synthetic data."""
    argv = runs.argv("run", steps=4, learning_rate=0.02, run_name="run", enable_checkpointing=True)
    argv.append("dataset_type=synthetic")
    from maxtext import train

    assert train.main(argv) == 0
    return argv


def greedy(argv: list[str], prompt: str, count: int, *, bos: bool = True) -> str:
    """Each token by a forward pass over a row that holds no padding."""
    setup = prepare(load(argv, {}).config)
    tokens = [TOKENIZER.bos_id] * bos + TOKENIZER.encode(prompt)
    with use_layout(setup.layout):
        params = load_parameters(setup.directory, setup.abstract.params)
        for _ in range(count):
            # One row a device: any mesh takes that.
            row = jnp.asarray([tokens] * setup.layout.mesh.size)
            runtime = Runtime(
                attend=functools.partial(training_attend, setup.config.compute),
                stages=Stages(),
                dtype="float32",
            )
            positions = jnp.broadcast_to(jnp.arange(row.shape[1]), row.shape)
            hidden = hidden_states(
                setup.architecture, params, row, positions, jnp.ones_like(row), runtime=runtime
            )
            token = int(jnp.argmax(hidden[0, -1] @ output_kernel(params)))
            if token == TOKENIZER.eos_id:
                break
            tokens.append(token)
    return TOKENIZER.decode(tokens)


@pytest.mark.slow
def test_greedy_text_is_that_of_forward_passes(trained, capfd) -> None:
    for prompt in ("", "to be or"):
        want = greedy(trained, prompt, 4)
        capfd.readouterr()
        assert decode.main([*trained, f"prompt={prompt}", "max_new_tokens=4"]) == 0
        assert capfd.readouterr().out == want + "\n"

    context = (*trained, "ici_context_parallelism=2", "per_device_batch_size=1")
    assert decode.main([*context, "prompt=to be or", "max_new_tokens=4"]) == 0
    assert capfd.readouterr().out == want + "\n"

    # The row has 32 tokens: BOS, the prompt, and what is new.
    prompt = "x" * 28
    assert decode.main([*trained, f"prompt={prompt}", "max_new_tokens=3"]) == 0
    capfd.readouterr()
    assert decode.main([*trained, f"prompt={prompt}", "max_new_tokens=4"]) == 2
    assert "29 tokens of the prompt and max_new_tokens=4 exceed" in capfd.readouterr().err


@pytest.mark.slow
def test_attention_data_parallelism_is_answered_once_with_the_reason(trained, capfd) -> None:
    capfd.readouterr()
    argv = [*trained, "ici_tensor_parallelism=8", "enable_dp_attention=true"]
    assert decode.main([*argv, "prompt=x", "max_new_tokens=1"]) == 0
    want = "attention data parallelism: 4 groups of 2, Q only: 2 key and value heads on 8 devices"
    assert capfd.readouterr().err.count(want) == 1
    announced: list[str] = []
    config = load([*argv, "serve_warm_up=false"], {}, model_from_checkpoint=True).config
    load_service(config, announced.append)
    (text,) = announced
    assert text.startswith(want)


@pytest.mark.slow
def test_a_file_of_prompts_gives_a_line_each_in_order(
    trained, tmp_path, capfd, monkeypatch
) -> None:
    prompts = ["to be or", "x", "", "to be"]
    wanted = []
    for prompt in prompts:
        capfd.readouterr()
        assert decode.main([*trained, f"prompt={prompt}", "max_new_tokens=5"]) == 0
        wanted.append(capfd.readouterr().out.removeprefix(prompt).removesuffix("\n"))
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": prompt, "max_new_tokens": 5} for prompt in prompts]
    lines += [{"prompt": "x", "max_new_tokens": 5, "stop": wanted[1][1:2]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [*trained, f"prompts_file={file}", "decode_logprobs=1", "max_num_seqs=2"]
    assert decode.main(argv) == 0
    out, err = capfd.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["prompt"] for one in found] == [*prompts, "x"]
    assert [one["text"] for one in found] == [*wanted, wanted[1][:1]]
    assert found[4]["finish_reason"] == "stop"
    for one in found:
        assert len(one["logprobs"]) == len(one["tokens"])
        assert all(entry["chosen"] <= 0 for entry in one["logprobs"])
    assert "tokens/s" in err

    text = tmp_path / "prompts.txt"
    text.write_text("to be or\n\nx\n")
    assert decode.main([*trained, f"prompts_file={text}", "max_new_tokens=5"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [one["text"] for one in found] == wanted[:2]

    # What a user says in a chat; the answer alone is printed.
    template = tmp_path / "chat.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %} or")
    argv = [*trained, "use_chat_template=true", f"chat_template={template}"]
    monkeypatch.setattr("sys.stdin", io.StringIO("to be\n"))
    assert decode.main([*argv, "prompt=-", "max_new_tokens=5"]) == 0
    answer = capfd.readouterr().out
    want = greedy(trained, "to be or", 5, bos=False)
    assert answer == want.removeprefix("to be or") + "\n"

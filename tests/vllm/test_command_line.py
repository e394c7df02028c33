"""`maxtext.vllm_decode` on the command line prints what `maxtext.decode` prints."""

import json
import subprocess
import sys

import pytest

from maxtext import decode
from maxtext.conversion.byte_tokenizer import write_byte_tokenizer
from vllm_checkpoints import write_checkpoint

DEGREE = '{"sharding": {"sharding_strategy": {"attn_dp_size": 2}}}'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    write_checkpoint(folder)
    return str(folder)


def vllm_decode(*argv: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: vLLM logs to the stderr that it finds when it is imported."""
    command = [sys.executable, "-m", "maxtext.vllm_decode", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_the_same_is_printed_for_files_of_prompts(checkpoint, tmp_path, capfd) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "to be or", "max_new_tokens": 9}, {"prompt": "", "max_new_tokens": 3}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [f"load_parameters_path={checkpoint}", f"prompts_file={file}", "jax_cache_dir="]
    assert decode.main(argv) == 0
    want = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    # A text that comes in the first answer ends the next one, and a token all of them.
    lines.append({"prompt": "to be or", "max_new_tokens": 9, "stop": want[0]["text"][2:4]})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv += ["decode_logprobs=1", "decode_eos_ids=" + str(want[1]["tokens"][-1])]
    assert decode.main(argv) == 0
    want = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    done = vllm_decode(*argv)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for one in (*want, *found):
        assert len(one.pop("logprobs")) == len(one["tokens"])
    assert found == want
    assert {one["finish_reason"] for one in found} >= {"eos", "stop"}
    assert "tokens/s" in done.stderr


def test_keys_as_upstream_writes_them_and_eight_devices_print_the_same(
    checkpoint, tmp_path, capfd
) -> None:
    write_byte_tokenizer(tmp_path, add_bos=True)
    (tmp_path / "config.json").write_text('{"architectures": ["MaxTextForCausalLM"]}')
    asked = ["--load_parameters_path", checkpoint, "--max_new_tokens", "8"]
    asked += ["--prompt", "Suggest some famous"]
    assert decode.main(asked) == 0
    want = capfd.readouterr().out
    asked += ["--hf_model_name", str(tmp_path), "--hf_config_path", str(tmp_path)]
    asked += ["--ici_tensor_parallelism", "8", "--gpu_memory_utilization", "0.5"]
    asked += ["--debug_sharding", "true", "--run_name", "run"]
    asked += ["--base_output_directory", str(tmp_path)]
    done = vllm_decode(*asked, "--enable_dp_attention", "true", "--attn_dp_weights", "replicated")
    assert (done.returncode, done.stdout) == (0, want), done.stderr
    # Of Llama, what the document that this follows has for Llama-3.1-8B on eight devices.
    lines = (tmp_path / "run" / "sharding" / "weights.txt").read_text().splitlines()
    for name, placed in {
        "decoder/decoder_norm/scale": "(('model', 'attn_dp'),)",
        "decoder/layers_0/mlp/wi_0/kernel": "(None, ('model', 'attn_dp'))",
        "decoder/layers_0/mlp/wo/kernel": "(('model', 'attn_dp'), None)",
        "decoder/layers_1/self_attention/query/kernel": "(None, 'model', None)",
        "decoder/layers_1/self_attention/out/kernel": "('model', None, None)",
        "decoder/logits_dense/kernel": "(None, ('model', 'attn_dp'))",
        "token_embedder/embedding": "(('model', 'attn_dp'), None)",
    }.items():
        (line,) = [line for line in lines if line.startswith(f"{name}.")]
        assert line.endswith(f"] {placed}")
    lines = (tmp_path / "run" / "sharding" / "activations.txt").read_text()
    assert "attentions.py:" in lines
    assert "(None, 'attn_dp', 'model', None)" in lines


def test_a_degree_that_vllm_was_told_otherwise_ends_the_run(checkpoint) -> None:
    argv = [f"load_parameters_path={checkpoint}", "prompt=x", "max_new_tokens=4"]
    argv += ["ici_tensor_parallelism=8"]
    done = vllm_decode(*argv, "enable_dp_attention=true", f"vllm_additional_config={DEGREE}")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "asks for a mesh of data 1 x attn_dp 4 x expert 1 x model 2" in done.stderr
    made = "vLLM made one of data 1 x attn_dp 2 x attn_dp_expert 1 x expert 1 x model 4"
    assert made in done.stderr

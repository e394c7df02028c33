"""`maxtext.vllm_decode` on the command line prints what `maxtext.decode` prints."""

import json

import pytest

from maxtext import decode, vllm_decode
from vllm_checkpoints import write_checkpoint

DEGREE = '{"sharding": {"sharding_strategy": {"attn_dp_size": 2}}}'


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    write_checkpoint(folder)
    return str(folder)


def test_the_same_is_printed_for_files_of_prompts(checkpoint, tmp_path, capfd) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "to be or", "max_new_tokens": 9}, {"prompt": "", "max_new_tokens": 3}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [f"load_parameters_path={checkpoint}", f"prompts_file={prompts}", "jax_cache_dir="]
    assert decode.main(argv) == 0
    want = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    # A text that comes in the first answer ends the next one.
    lines.append({"prompt": "to be or", "max_new_tokens": 9, "stop": want[0]["text"][2:4]})
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv += ["decode_logprobs=1", "decode_eos_ids=" + str(want[1]["tokens"][-1])]
    assert decode.main(argv) == 0
    want = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert vllm_decode.main(argv) == 0
    out, err = capfd.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    for one in (*want, *found):
        del one["logprobs"]
    assert found == want
    assert {one["finish_reason"] for one in found} >= {"eos", "stop"}
    assert "tokens/s" in err


def test_keys_as_upstream_writes_them_and_eight_devices_print_the_same(checkpoint, capfd) -> None:
    prompt = "Suggest some famous"
    asked = ["--load_parameters_path", checkpoint, "--prompt", prompt, "--max_new_tokens", "8"]
    assert decode.main(asked) == 0
    want = capfd.readouterr().out
    asked += ["--ici_tensor_parallelism", "8", "--gpu_memory_utilization", "0.5"]
    assert vllm_decode.main([*asked, "--enable_dp_attention", "true"]) == 0
    assert capfd.readouterr().out == want


def test_a_degree_that_vllm_was_told_otherwise_ends_the_run(checkpoint, capfd) -> None:
    argv = [f"load_parameters_path={checkpoint}", "prompt=x", "ici_tensor_parallelism=8"]
    argv += ["enable_dp_attention=true", f"vllm_additional_config={DEGREE}"]
    assert vllm_decode.main(argv) == 2
    err = capfd.readouterr().err
    assert "asks for a mesh of data 1 x attn_dp 4 x expert 1 x model 2" in err
    assert "vLLM made one of data 1 x attn_dp 2 x attn_dp_expert 1 x expert 1 x model 4" in err

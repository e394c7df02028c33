"""`maxtext.plan` as users call it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from maxtext.config.keys import keys
from maxtext.plan import main
from maxtext.planning.devices import DEVICES

LLAMA = ("model_name=llama3.1-8b", "ici_tensor_parallelism=8", "max_target_length=8192")
GROUPS = ("ici_attn_dp_parallelism=4", "ici_fsdp_parallelism=1")


def said(capsys, *argv: str) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def refused(capsys, *argv: str) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err


def test_no_device_is_touched() -> None:
    environ = {**os.environ, "JAX_PLATFORMS": "there_is_none"}
    command = [sys.executable, "-m", "maxtext.plan", *LLAMA, "plan_device=v5e"]
    found = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "sequences of 8192 that fit" in found.stdout


def test_json_holds_the_numbers_of_the_table(capsys) -> None:
    table = said(capsys, *LLAMA, *GROUPS, "plan_device=v5e")
    plan = json.loads(said(capsys, *LLAMA, *GROUPS, "plan_device=v5e", "--json"))
    assert plan["attention"] == {
        "attn_dp": 4,
        "model": 2,
        "variant": "Q+K+V",
        "why": "ici_attn_dp_parallelism=4; 32 query and 8 key heads divide over 8 devices",
    }
    assert plan["serving"]["mesh"] == {"attn_dp": 4, "model": 2}
    assert f"{plan['serving']['weight_bytes'] / 2**30:.4g} GiB" in table
    assert plan["serving"]["cache_bytes_per_token"] == 2 * 4 * 128 * 2 * 32
    (line,) = (line for line in table.splitlines() if "sequences of 8192" in line)
    assert line.split()[-1] == str(plan["serving"]["fit"]["sequences"])
    assert plan["training"] is None
    assert "training has none" in plan["problems"]["training"]


def test_weights_and_cache_are_what_is_left_of_the_memory(capsys) -> None:
    plan = json.loads(said(capsys, *LLAMA, "hbm_gib=10", "plan_num_devices=8", "--json"))
    serving = plan["serving"]
    free = 10 * 2**30 - serving["weight_bytes"]
    assert serving["fit"]["free_bytes"] == free
    page = 16 * serving["cache_bytes_per_token"]
    assert serving["fit"]["pages"] == int(free * 0.5 // page)
    assert serving["fit"]["sequences"] == serving["fit"]["pages"] // 512
    assert serving["decode"]["seconds"] is None


def test_a_roofline_is_bytes_over_bandwidth(capsys) -> None:
    plan = json.loads(said(capsys, *LLAMA, "plan_device=h200", "--json"))
    decode = plan["serving"]["decode"]
    read = decode["weight_bytes"] + decode["cache_bytes"]
    assert decode["seconds"]["memory"] == pytest.approx(read / 4.8e12)
    assert decode["seconds"]["links"] == pytest.approx(decode["exchanges"]["bytes_sent"] / 450e9)
    # 32 requests of 8,192 tokens: all weights but the embedding, one of 8 heads.
    assert decode["cache_bytes"] == 32 * 8192 * 2 * 128 * 2 * 32
    weights = {group["name"]: group["num_params"] for group in plan["serving"]["weights"]}
    contracted = sum(size for name, size in weights.items() if name not in ("embedding", "norms"))
    attention = 4 * 32 * 128 * 8192 * 32
    assert decode["flops"] == pytest.approx(32 * (2 * contracted + attention) / 8)


def test_what_does_not_fit_is_told_what_would(capsys) -> None:
    keys = ("model_name=llama3.1-70b", "ici_tensor_parallelism=8", "max_target_length=8192")
    plan = json.loads(said(capsys, *keys, "plan_device=v5e", "--json"))
    assert plan["serving"]["fit"]["sequences"] == 0
    assert plan["serving"]["decode"] is None
    assert "16 devices: ici_tensor_parallelism=16" in plan["instead"]["serving"]
    for_real = [*keys[:1], "ici_tensor_parallelism=16", keys[2], "plan_device=v5e", "--json"]
    assert json.loads(said(capsys, *for_real))["serving"]["fit"]["sequences"] > 0


def test_training_that_does_not_fit_is_told_what_would(capsys) -> None:
    keys = ("model_name=llama3.2-1b", "plan_num_devices=8", "plan_device=v5e")
    keys += ("max_target_length=4096", "remat_policy=minimal")
    plan = json.loads(said(capsys, *keys, "--json"))
    assert plan["training"]["free_bytes"] < 0
    (size,) = (one for one in plan["instead"]["training"] if "per_device" in one)
    fits = json.loads(said(capsys, *keys, size, "--json"))
    assert fits["training"]["free_bytes"] >= 0


def test_what_training_alone_can_do_is_planned(capsys) -> None:
    keys = ("model_name=llama3.1-8b", "ici_pipeline_parallelism=2", "plan_num_devices=8")
    plan = json.loads(said(capsys, *keys, "plan_device=v5p", "--json"))
    assert plan["serving"] is None
    assert "stages are for training" in plan["problems"]["serving"]
    training = plan["training"]
    assert "activations, logits and collectives of a pipeline" in training["not_counted"]
    assert (training["memory"]["activations"], training["memory"]["logits"]) == (None, None)
    assert (training["exchanges"], training["seconds"]) == (None, None)
    assert training["memory"]["optimizer"] > training["memory"]["weights"] > 0
    assert "activations kept, full          not counted" in said(capsys, *keys, "plan_device=v5p")


@pytest.mark.parametrize("axis", ["context", "tensor_sequence"])
def test_collectives_that_are_not_known_are_not_numbers(capsys, axis: str) -> None:
    keys = (LLAMA[0], f"ici_{axis}_parallelism=4", "plan_num_devices=8", "plan_device=v5p")
    plan = json.loads(said(capsys, *keys, "--json"))
    training, decode = plan["training"], plan["serving"]["decode"]
    assert (training["exchanges"], training["seconds"]) == (None, None)
    assert axis in training["not_counted"][-1]
    assert training["memory"]["activations"] > 0
    # What follows the split of heads is known of an engine.
    assert (decode["exchanges"] is None) == (decode["seconds"] is None) == (axis == "context")
    assert "sent a device                      not counted" in said(capsys, *keys)


def test_what_is_fused_weighs_the_same(capsys) -> None:
    keys = (*LLAMA, "plan_device=v5p", "--json")
    apart = json.loads(said(capsys, *keys))
    fused = json.loads(said(capsys, *keys, "fused_qkv=true", "fused_mlp=true"))
    for part in ("serving", "training"):
        sizes = [sum(w["num_bytes"] for w in one[part]["weights"]) for one in (apart, fused)]
        assert sizes[0] == sizes[1]
    assert fused["training"]["memory"] == apart["training"]["memory"]
    assert fused["serving"]["decode"]["flops"] == apart["serving"]["decode"]["flops"]


def test_two_files_stand_beside_each_other(capsys, tmp_path: Path) -> None:
    for name, groups in (("a", 1), ("b", 4)):
        text = "model_name: llama3.1-8b\nici_tensor_parallelism: 8\nici_fsdp_parallelism: 1\n"
        (tmp_path / f"{name}.yml").write_text(f"{text}ici_attn_dp_parallelism: {groups}\n")
    files = [str(tmp_path / "a.yml"), str(tmp_path / "b.yml")]
    table = said(capsys, "compare", *files, "plan_device=v5e")
    (line,) = (line for line in table.splitlines() if "cache a token" in line)
    assert line.split()[-4:] == ["16,384", "B", "65,536", "B"]
    assert set(json.loads(said(capsys, "compare", *files, "plan_device=v5e", "--json"))) == set(
        files
    )


def test_a_picture_says_who_holds_what(capsys, tmp_path: Path) -> None:
    file = tmp_path / "devices.svg"
    said(capsys, *LLAMA, *GROUPS, "plan_device=v5e", "--picture", str(file))
    texts = [one.text for one in ElementTree.parse(file).iter() if one.tag.endswith("text")]
    # Device 5 is the second of the third group: M is major where heads are projected.
    assert texts[2 + 5 * 5 :][:5] == [
        "device 5: requests 2",
        "attends: heads 16-31",
        "cache: kv heads 4-7",
        "Q, O: heads 24-27",
        "MLP: 10752-12543",
    ]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("plan_device=v7",), "must be one of"),
        ((), "how much memory a device has is unknown"),
        (("plan_device=v5e", "plan_num_devices=0"), "must be -1 or at least 1"),
        (("plan_device=v5e", "plan_num_devices=6", "ici_tensor_parallelism=4"), "does not fit 6"),
        (
            ("plan_device=v5e", "base_num_query_heads=12", "ici_tensor_parallelism=8"),
            "'heads' of size 12 does not divide over tensor 8",
        ),
        (("plan_device=v5e", "plan_num_devices=1000000000"), "1,000,000,000 devices are too many"),
        (("plan_device=v5e", "ici_data_parallelism=1000000"), "1,000,000 devices are too many"),
        (("plan_device=v5e", "hbm_gib=nan"), "hbm_gib=nan (command line): must be a number"),
        (("plan_device=v5e", "hbm_gib=-1"), "hbm_gib=-1 (command line): must be a number"),
        (("plan_device=v5e", "model_nam=x"), "model_name"),
        (("plan_device=v5e", "load_parameters_path=/nowhere"), "does not exist"),
        (("plan_device=v5e", "--picture", "/nowhere/a.svg"), "cannot be written"),
        (("plan_device=v5e", "--picture", "a.png"), "must end in .svg"),
        (("plan_device=v5e", "--picture", "."), "must end in .svg"),
    ],
)
def test_bad_input_is_one_clear_error(capsys, argv: tuple[str, ...], words: str) -> None:
    found = refused(capsys, *argv)
    assert words in found
    assert found.count("error:") == 1


def test_one_file_cannot_be_compared(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "configs/quickstart.yml", "plan_device=v5e"])
    assert "two YAML files" in capsys.readouterr().err


def test_each_device_of_the_table_can_be_named_and_has_a_source() -> None:
    assert set(keys()["plan_device"].choices) == {"", *DEVICES}
    for device in DEVICES.values():
        assert device.source
        assert device.bfloat16_flops > 1e14
        assert device.hbm_bandwidth > device.link_bandwidth

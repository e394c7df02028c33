"""Faces for other systems: the only code that imports flax, vllm and tpu_inference."""

"""Real vLLM on our decoder: it schedules, batches and caches, our model code computes."""

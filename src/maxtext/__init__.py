"""Trains large language models and serves them from the same model code."""

"""Weights of other projects to ours and back, a tensor at a time.

Nothing is imported here: what only parses a command line starts without JAX.
"""

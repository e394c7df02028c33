"""Checkpoints: whole steps or none, strictly matched and checked bit for bit when read.

Nothing is imported here: the commands of `python -m maxtext.checkpoint` start without JAX.
"""

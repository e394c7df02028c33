"""Decoding: many requests at once on one model."""

from maxtext.decoding.engine import Engine
from maxtext.decoding.requests import Event, Logprob, Request, Sampling

__all__ = ["Engine", "Event", "Logprob", "Request", "Sampling"]

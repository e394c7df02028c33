"""Decoding: sampling, and the loop that generates text."""

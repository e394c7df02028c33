"""Layers: a struct of weights, its declaration, and the function that applies it."""

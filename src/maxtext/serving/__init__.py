"""Serving: OpenAI's HTTP interface over the decoding engine."""

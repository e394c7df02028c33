"""Model families, and the decoder that they share."""

"""Text files, or random numbers, to batches of one shape; every iterator can be resumed."""

"""Training: state, loss, step, evaluation, and the loop that runs them."""

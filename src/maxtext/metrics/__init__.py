"""What a run reports: FLOPs, devices' limits, the step log."""

"""Checkpoints: whole steps or none, strictly matched and checked bit for bit when read."""

from maxtext.checkpoint.errors import CheckpointError, CheckpointMismatch, DamagedCheckpoint
from maxtext.checkpoint.loading import load_full_state, load_parameters
from maxtext.checkpoint.reading import Restored
from maxtext.checkpoint.store import CheckpointStore

__all__ = [
    "CheckpointError",
    "CheckpointMismatch",
    "CheckpointStore",
    "DamagedCheckpoint",
    "Restored",
    "load_full_state",
    "load_parameters",
]

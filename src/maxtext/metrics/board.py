"""TensorBoard's event files, written by the thread that logs.

tensorboardX's own writer hands events to a thread; where that one meets a full disk it ends, and
the program waits for it for ever.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter

# Protocol buffers make their classes when they are imported: no checker sees them.
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore
from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore

from maxtext.metrics.history import writing

_SECONDS_UNFLUSHED = 10.0


class Board:
    """A new event file in a folder."""

    def __init__(self, folder: str, *, start_step: int) -> None:
        """Opens the file.

        Args:
            folder: Is made where there is none.
            start_step: TensorBoard hides what earlier files hold of this step and later ones.

        Raises:
            ValueError: The folder cannot be written.
        """
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(Path(folder) / "events"))
        except OSError as error:
            raise ValueError(
                f"enable_tensorboard=true: {folder} cannot be written: {error.strerror}"
            ) from error
        self._folder = folder
        self._flushed = time.monotonic()
        self._add(Event(step=start_step, session_log=SessionLog(status=SessionLog.START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the scalars of a step by their tags.

        Raises:
            OSError: The file cannot be written.
        """
        entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(Event(step=step, summary=Summary(value=entries)))

    def close(self) -> None:
        """Flushes and closes the file. Raises as `scalars`."""
        with writing(self._folder):
            self._events.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        with writing(self._folder):
            self._events.write_event(event)
            if time.monotonic() - self._flushed > _SECONDS_UNFLUSHED:
                self._events.flush()
                self._flushed = time.monotonic()

import logging
import threading

from maxtext.training.progress import still


def test_what_takes_long_is_told_again_and_again(caplog) -> None:
    caplog.set_level(logging.INFO, logger="maxtext")
    twice = threading.Event()

    class Count(logging.Handler):
        lines = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.lines += 1
            if self.lines == 2:
                twice.set()

    count = Count()
    logging.getLogger("maxtext").addHandler(count)
    with still("compiling", every_seconds=0.001):
        assert twice.wait(timeout=60)
    logging.getLogger("maxtext").removeHandler(count)
    assert caplog.messages[0] == "still compiling, for 0 s now"
    assert not [one for one in threading.enumerate() if one.name == "progress"]


def test_what_is_short_is_not_told(caplog) -> None:
    caplog.set_level(logging.INFO, logger="maxtext")
    with still("compiling"):
        pass
    assert caplog.messages == []

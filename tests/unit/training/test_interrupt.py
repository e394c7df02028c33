import signal

import pytest

from maxtext.training.interrupt import SIGNALS, Interrupt


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_wish(number: signal.Signals) -> None:
    with Interrupt() as interrupt:
        assert interrupt.received == 0
        signal.raise_signal(number)
        assert interrupt.received == number


@pytest.mark.parametrize("second", SIGNALS)
def test_a_second_signal_ends_the_process_at_once(second: signal.Signals) -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
        assert interrupt.received == signal.SIGTERM


def test_handlers_are_put_back_after_an_error_too() -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with pytest.raises(RuntimeError, match="boom"), Interrupt():  # noqa: PT012
        assert [signal.getsignal(one) for one in SIGNALS] != before
        raise RuntimeError("boom")
    assert [signal.getsignal(one) for one in SIGNALS] == before

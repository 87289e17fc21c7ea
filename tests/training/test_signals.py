import os
import signal
import threading

import pytest

from budwood.training.signals import interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(number, capfd):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), number)
        assert interruption.requested and interruption.signal == signal.Signals(number).name
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(number) is before
    out, err = capfd.readouterr()
    assert out == "" and "stopping after this step" in err


def test_other_threads_run_without_handlers():
    found = []

    def work():
        with interruptible() as interruption:
            found.append((interruption.requested, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, before)]

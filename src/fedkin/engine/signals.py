"""A clean stop: Ctrl-C, SIGTERM and SIGHUP end a run, with all that it started and created for the moment.

A signal may come at any instant, also while a run is opened or closed. So it raises `Stopped` only where the code says
that it may (`interruptible`); elsewhere it is kept until then. After it was raised, further signals change nothing: the
run is being closed already, and that takes a moment.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """The process was asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class _Stop:
    """Signals are the process's, not a run's, and so is this."""

    blocks: int = 0
    """How many `stoppable` blocks the main thread is in, one inside the other."""
    interruptible: bool = False
    asked: int = 0
    """The first signal that came; 0: none."""
    raised: bool = False


_stop = _Stop()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Inside this block the signals stop what is done in `interruptible` blocks; what is outside them is done first.
    Handlers of the user's own, and `nohup`, stay in force."""
    if not _in_main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [n for n, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    if not _stop.blocks:
        _stop.asked, _stop.raised = 0, False
    _stop.blocks += 1
    try:
        with protected():
            for number in ours:
                signal.signal(number, _handle)
            yield
    finally:
        _stop.blocks -= 1
        for number in reversed(ours):  # SIGINT last: from then on it raises KeyboardInterrupt
            if signal.getsignal(number) is _handle:
                signal.signal(number, before[number])
    if _stop.asked and not _stop.raised:  # it came too late to stop anything here, and must not be lost
        _stop.raised = True
        raise Stopped(_stop.asked)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A signal ends this block at once."""
    with _set(True):
        check()
        yield


@contextlib.contextmanager
def protected() -> Iterator[None]:
    """A signal ends this block only when it is through: what it begins, it finishes."""
    with _set(False):
        yield
    if _stop.interruptible and _stop.asked and not _stop.raised and _in_main_thread():
        _stop.raised = True
        raise Stopped(_stop.asked)


def check() -> None:
    """Raise if a signal has come. Also where it was raised before: Python drops what is raised inside a destructor."""
    if _stop.asked and _in_main_thread():
        _stop.raised = True
        raise Stopped(_stop.asked)


def forget_in_child() -> None:
    """In a forked worker: its parent ends it. Ctrl-C reaches all processes of a terminal."""
    global _stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _stop = _Stop()


def ignore() -> None:
    """For a process that was stopped and is about to end: another signal must not disturb that."""
    for number in SIGNALS if _stop.raised else ():
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _set(interruptible: bool) -> Iterator[None]:
    if not _in_main_thread():
        yield
        return
    before, _stop.interruptible = _stop.interruptible, interruptible
    try:
        yield
    finally:
        _stop.interruptible = before


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _handle(number: int, frame: FrameType | None) -> None:
    _stop.asked = _stop.asked or number
    if _stop.interruptible and not _stop.raised:
        _stop.raised = True
        raise Stopped(number)

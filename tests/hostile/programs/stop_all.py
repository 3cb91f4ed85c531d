"""Stops its group and itself."""

import os
import signal

child = os.fork()
if child == 0:
    os.kill(os.getppid(), signal.SIGSTOP)
os.killpg(0, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)

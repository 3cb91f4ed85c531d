"""Asks to be traced, forks, and tries to trace the child."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
traced = libc.ptrace(0, 0, 0, 0)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os._exit(0)
attached = libc.ptrace(16, child, 0, 0)
_, status = os.waitpid(child, 0)
print(traced, attached, status)

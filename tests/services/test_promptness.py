"""What a process asks the kernel for, and that nobody inherits it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

LOOK = """
import ctypes, json, os, struct, sys, threading
from shared.promptness import be_prompt
GETATTR = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
def seen():
    room = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(GETATTR, 0, room, 48, 0) == 0
    size, policy, flags, nice, priority, runtime, *rest = struct.unpack("IIQiIQQQ", room.raw)
    return {"policy": policy, "nice": nice, "slice": runtime}
"""


def looked(program: str) -> Any:
    done = subprocess.run([sys.executable, "-c", LOOK + program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_loops_thread_asks_for_a_short_slice_and_keeps_its_own_priority() -> None:
    before, done, after = looked("""
os.nice(3)
before = seen()
done = be_prompt()
print(json.dumps([before, done, seen()]))
""")
    assert done and (after["policy"], after["nice"]) == (before["policy"], 3)
    # Older kernels tell a runtime of 0 for such threads, before and after.
    assert after["slice"] == (100_000 if before["slice"] else 0)


def test_what_it_starts_is_scheduled_as_any_other_process() -> None:
    fresh, thread, child = looked("""
fresh, thread = seen(), []
be_prompt()
other = threading.Thread(target=lambda: thread.append(seen()))
other.start()
other.join()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, json.dumps(seen()).encode())
    os._exit(0)
print(json.dumps([fresh, thread[0], json.loads(os.read(reader, 1000))]))
""")
    assert thread == child == fresh


@pytest.mark.parametrize("policy", ["SCHED_FIFO", "SCHED_IDLE"])
def test_a_thread_that_is_not_scheduled_by_shares_is_left_alone(policy: str) -> None:
    left, done, after = looked(f"""
try:
    os.sched_setscheduler(0, os.{policy}, os.sched_param(1 if "{policy}" == "SCHED_FIFO" else 0))
except PermissionError:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
left = os.sched_getscheduler(0)
print(json.dumps([left, be_prompt(), os.sched_getscheduler(0)]))
""")
    assert after == left and not done

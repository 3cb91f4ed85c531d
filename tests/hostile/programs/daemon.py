"""A double fork with a session of its own; the daemon keeps the streams and writes on."""

import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.2)
            os.write(1, b"still here\n")
    os._exit(0)
os.wait()
print("left", flush=True)

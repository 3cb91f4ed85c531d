"""Closes its streams and sleeps: the end of a stream is not the end of a run."""

import os
import time

for descriptor in (0, 1, 2):
    os.close(descriptor)
time.sleep(600)

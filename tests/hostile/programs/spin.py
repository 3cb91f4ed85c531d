"""Uses all the CPU it can get, in two processes."""

import os

os.fork()
while True:
    pass

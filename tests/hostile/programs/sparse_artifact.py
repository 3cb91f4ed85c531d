"""A sparse file, as large as may be, a pebibyte if it may."""

import os

descriptor = os.open("/work/artifact", os.O_CREAT | os.O_RDWR)
for shift in range(50, 10, -1):
    try:
        os.ftruncate(descriptor, 1 << shift)
        break
    except OSError:
        pass

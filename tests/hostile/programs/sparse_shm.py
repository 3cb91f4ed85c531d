"""A sparse file in /dev/shm, mapped, touched until the place is full: a bus error."""

import mmap
import os

descriptor = os.open("/dev/shm/sparse", os.O_CREAT | os.O_RDWR)
size = 0
while True:
    try:
        os.ftruncate(descriptor, size + (1 << 20))
    except OSError:
        break
    size += 1 << 20
held = mmap.mmap(descriptor, size)
for place in range(0, size, 4096):
    held[place] = 1
os.mkdir("/dev/shm/more")
second = os.open("/dev/shm/more/sparse", os.O_CREAT | os.O_RDWR)
os.ftruncate(second, size)
held = mmap.mmap(second, size)
for place in range(0, size, 4096):
    held[place] = 1

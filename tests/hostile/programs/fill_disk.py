"""Writes to the folder that is named until nothing more fits."""

import sys

number = 0
while True:
    number += 1
    with open(f"{sys.argv[1]}/{number}", "wb") as file:
        file.write(b"x" * (1 << 20))

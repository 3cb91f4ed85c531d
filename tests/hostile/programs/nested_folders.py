"""A thousand folders, one in the other, and a file at the bottom."""

import os

for _ in range(1000):
    os.mkdir("d")
    os.chdir("d")
open("bottom", "w").close()

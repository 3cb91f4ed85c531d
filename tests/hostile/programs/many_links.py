"""A hundred names of one large file."""

import os

with open("/work/0", "wb") as file:
    file.write(b"x" * (8 << 20))
for number in range(1, 100):
    os.link("/work/0", f"/work/{number}")

"""Ten gigabytes into the stream that is named."""

import os
import sys

chunk = b"x" * (1 << 16)
for _ in range(10_000_000_000 // len(chunk)):
    os.write(int(sys.argv[1]), chunk)

"""One file that grows beyond what a file may."""

with open("/work/large", "wb") as file:
    for _ in range(1 << 10):
        file.write(b"x" * (1 << 20))
        file.flush()

"""A million empty files."""

for number in range(1_000_000):
    open(f"/work/{number}", "w").close()

"""Ten gigabytes at once, all touched."""

held = bytearray(10_000_000_000)
for place in range(0, len(held), 4096):
    held[place] = 1

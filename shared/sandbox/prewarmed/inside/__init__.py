"""What runs inside the jail of a fork server: standard library only, sent there as text. See `zygote.py`."""

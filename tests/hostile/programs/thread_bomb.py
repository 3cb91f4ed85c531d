"""Threads that wait for ever, as many as can be had, and then more."""

import threading

while True:
    try:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    except RuntimeError:
        pass

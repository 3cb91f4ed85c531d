"""The way out of a jail: none, or a proxy of ours that knows where to."""

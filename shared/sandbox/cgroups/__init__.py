"""Counting and bounding what one run uses: control groups of version 1, of version 2, or none."""

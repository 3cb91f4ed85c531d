"""`temper up`: one run on one machine, from an empty folder to its summary."""

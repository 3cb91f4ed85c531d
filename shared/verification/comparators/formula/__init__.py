"""Mathematical answers, in LaTeX or plain text: source → tokens → tree → value → exact or numeric equality.

Invariant: nothing of a policy's text is ever executed or handed to a library's own parser, and every step has a
limit of its own, counted in work and never in seconds, so that a verdict does not depend on how busy a machine is.
"""

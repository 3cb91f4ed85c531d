"""Intake: from records in any order to complete groups, each resolved once.

Invariant (2 of the design): a slot is filled by the first complete pair of trajectory and reward, and a resolved
group never comes back, whatever is delivered again and wherever the learner is restarted.
"""

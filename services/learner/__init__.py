"""The learner: turns groups of verified trajectories into policy updates."""

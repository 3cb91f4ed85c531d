"""What a run came to: summary.json and the reward curve."""

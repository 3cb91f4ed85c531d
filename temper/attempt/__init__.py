"""One policy at work before one's eyes: episodes and talk, with the rollout service's own parts."""

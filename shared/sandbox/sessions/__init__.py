"""Long episodes: a workspace that outlives its commands, with snapshots, rollback and forks."""

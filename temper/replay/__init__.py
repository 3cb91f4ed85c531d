"""`temper replay`: a run's recorded steps, trained again and compared."""

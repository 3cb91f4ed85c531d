"""One learner as several processes: who they are, how they talk, how a batch and a model are spread over them."""

"""Deep Q-learning with action masks; knows nothing of images."""

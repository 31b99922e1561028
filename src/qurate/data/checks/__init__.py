"""What is wrong with images, lists and splits, found before training does."""

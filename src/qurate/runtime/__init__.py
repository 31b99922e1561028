"""What is asked of the machine: threads and memory, files written whole, seeds, progress."""

"""What a person looks at: one self-contained page for a run."""

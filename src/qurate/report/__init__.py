"""What a person looks at: the page of a run, the tables of a benchmark."""

"""Tables, figures and tests of a benchmark."""

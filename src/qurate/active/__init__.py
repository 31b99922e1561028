"""Which images a person should label next, and what people said of them."""

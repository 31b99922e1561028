"""A page on this machine where a person answers what the model asks: `qurate open RUN`."""

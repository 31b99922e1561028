"""Images of two domains come in; a split hides what must stay hidden."""

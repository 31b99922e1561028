"""Which images a person should label next: askers, behind one interface. Pure functions of tensors."""

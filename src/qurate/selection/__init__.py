"""An agent picks pseudo-labels: Algorithm 1 and the selectors it can be compared with."""

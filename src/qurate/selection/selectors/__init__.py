"""Which pseudo-labels to trust: one file is one rule. `qurate.registry` lists them; the agent is in `algorithm`."""

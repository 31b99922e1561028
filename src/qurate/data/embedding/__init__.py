"""Images through a frozen backbone once, into a cache keyed by content."""

"""Images through a frozen backbone, and the cache of what comes out."""

"""Methods compared on the same data: rows of results, and the demo that needs no download."""

"""One adaptation of one's own images: the practitioner's door."""

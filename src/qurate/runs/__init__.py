"""One adaptation of your own images: the practitioner's door."""

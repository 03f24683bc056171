"""Episodes of one's own: given as arrays, kept in files, checked before anything is trained on them."""

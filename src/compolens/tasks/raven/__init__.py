"""RAVEN images (1903.02741), read from the files of the data set."""

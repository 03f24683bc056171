"""Sentences of GLUE (1804.07461), read from the files of the data set."""

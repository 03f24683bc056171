"""Numbers from tensors: pure and model-free."""

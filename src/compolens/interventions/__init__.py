"""Causal interventions: another code written in, states interchanged between episodes, one part fine-tuned alone."""

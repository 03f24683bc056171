"""What everything rests on: descriptions, files that survive, signals, and where the built-in recipes lie. No torch."""

"""S-RAVEN: symbolic Raven matrices (2406.05816), and the exact posterior over their answers."""

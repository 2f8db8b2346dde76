"""The config of a run: its sections, what is wrong with it in words, and what follows from it."""

"""Files and stores found, opened, checked, guarded and replaced."""

"""Modules for scripts and rules alone: config, run of a script, estimates, records, report."""

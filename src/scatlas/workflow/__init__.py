"""What only scripts and rules import: config, plate sheet, run of a script, estimates, records, report."""

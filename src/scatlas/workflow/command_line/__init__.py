"""The command ``scatlas``, which writes a config and calls Snakemake with the workflow."""

"""The command ``scatlas``: writes a config, and calls Snakemake with the workflow of the package."""

"""The stores of the workflow, one file per product."""

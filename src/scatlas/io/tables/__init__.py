"""Tables: obs and var, column by column."""

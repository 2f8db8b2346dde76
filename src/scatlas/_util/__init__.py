"""Small things without a subject of their own; they import nothing of the package but its errors."""

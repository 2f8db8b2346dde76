"""Small helpers without another subject; they import nothing of the package but its errors."""

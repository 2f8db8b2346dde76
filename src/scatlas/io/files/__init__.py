"""Finds, opens, checks, guards and replaces files and stores."""

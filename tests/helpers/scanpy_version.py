"""The version of scanpy, where the results of 1.11 and 1.12 differ."""

from importlib.metadata import version

SCANPY_112 = tuple(map(int, version("scanpy").split(".")[:2])) >= (1, 12)

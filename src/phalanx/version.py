"""The version of the package: git tags decide it when the package is built."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("phalanx")
except PackageNotFoundError:  # imported from sources that were never installed
    __version__ = "0+unknown"

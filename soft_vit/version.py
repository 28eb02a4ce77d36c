__version__ = "0.3.0"
"""Version of this release, also in `CITATION.cff` and `CHANGELOG.md`."""

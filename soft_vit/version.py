__version__ = "0.5.0"
"""Version of this release, also in `CITATION.cff` and `CHANGELOG.md`."""

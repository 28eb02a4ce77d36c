__version__ = "0.3.0"
"""The release, of which `CITATION.cff` and `CHANGELOG.md` speak too."""

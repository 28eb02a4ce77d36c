__version__ = "0.2.0"
"""The release, of which `CITATION.cff` and `CHANGELOG.md` speak too."""

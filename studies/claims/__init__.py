"""Claims of the field, each with a check that takes minutes on a CPU."""

from studies.claims import cost, learning, matrices
from studies.claims.table import CLAIMS, check, claims_table, entries_as_json, load_entries

__all__ = ["CLAIMS", "check", "claims_table", "cost", "entries_as_json", "learning", "load_entries", "matrices"]

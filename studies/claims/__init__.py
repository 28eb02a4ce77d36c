"""Claims of the field, each with a check that takes minutes on a CPU."""

from studies.claims import cost, learning, matrices
from studies.claims.table import CLAIMS, claims_table, load_entries

__all__ = ["CLAIMS", "claims_table", "cost", "learning", "load_entries", "matrices"]

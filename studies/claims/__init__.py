"""Claims of the field, each with a check of minutes on a CPU."""

from studies.claims import cost, learning, matrices
from studies.claims.ledger import CLAIMS, check, entries_as_json, ledger_table, load_entries

__all__ = ["CLAIMS", "check", "cost", "entries_as_json", "learning", "ledger_table", "load_entries", "matrices"]

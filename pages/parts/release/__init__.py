"""Release page: forms for records, ledger and release; views of answers and published tables."""

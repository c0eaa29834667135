"""The Release page: whose budget pays, the typed confirmation, one run a key, and answers with
their downloads.
"""

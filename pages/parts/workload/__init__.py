"""Forms for the schema and the workload: attributes, families, groups, ranges, conditions, SQL.

To touch: a family with parameters needs one form in `family_form`.
"""

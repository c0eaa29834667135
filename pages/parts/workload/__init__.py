"""Forms for the schema and the workload."""

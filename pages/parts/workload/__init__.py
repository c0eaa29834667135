"""Forms for the workload and the budget."""

"""Views of a plan: the budget, what it promises, targets, and why a query is bad."""

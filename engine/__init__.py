"""Differentially private query answering."""

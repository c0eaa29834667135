"""Replay of random plans: what neighbouring tables would release, against what is charged."""

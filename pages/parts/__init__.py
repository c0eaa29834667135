"""Shared parts of the pages: state, frame, forms, background work and the drawing of pictures."""

"""What every page stands in: its frame, state with undo, address, words, drawing of pictures, and
the same as Python.

To touch: a page is one file in `pages` and one entry in ``frame.PAGES``.
"""
